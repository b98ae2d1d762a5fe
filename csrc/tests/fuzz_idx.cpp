// Feeds damaged .idx files to the reader, each in a block of memory of exactly its size, so that AddressSanitizer sees
// every byte read outside of it. Deterministic: fuzz_idx [ROUNDS] [SEED].
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "recipe_index/tokens/idx.hpp"

namespace {

using Bytes = std::vector<unsigned char>;

template <typename T>
void append(Bytes& bytes, T value) {
    unsigned char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    bytes.insert(bytes.end(), raw, raw + sizeof(T));
}

// A sound file of uint16 tokens, with one document per sequence.
Bytes sound_file(std::uint64_t sequences) {
    const char* magic = "MMIDIDX\0\0";
    Bytes bytes(magic, magic + 9);
    append<std::uint64_t>(bytes, 1);
    append<unsigned char>(bytes, 8);
    append<std::uint64_t>(bytes, sequences);
    append<std::uint64_t>(bytes, sequences + 1);
    std::int64_t start = 0;
    std::vector<std::int64_t> pointers;
    for (std::uint64_t i = 0; i < sequences; ++i) {
        const auto size = static_cast<std::int32_t>(i % 5);
        append(bytes, size);
        pointers.push_back(start);
        start += 2 * size;
    }
    for (const std::int64_t pointer : pointers) {
        append(bytes, pointer);
    }
    for (std::uint64_t i = 0; i <= sequences; ++i) {
        append(bytes, i);
    }
    return bytes;
}

// Changes bytes anywhere, and the fields of the header more often than the rest; cuts off, or adds.
void damage(Bytes& bytes, std::mt19937_64& random) {
    static constexpr unsigned char kEdges[] = {0, 1, 2, 4, 8, 9, 0x7F, 0x80, 0xFE, 0xFF};
    for (std::uint64_t changes = random() % 4; changes > 0; --changes) {
        const std::size_t reach = random() % 2 == 0 ? std::min<std::size_t>(bytes.size(), 34) : bytes.size();
        const std::uint64_t kind = random();
        bytes[random() % reach] = kind % 3 == 0 ? static_cast<unsigned char>(kind >> 8) : kEdges[kind % 10];
    }
    if (random() % 4 == 0) {
        bytes.resize(random() % (bytes.size() + 40));
    }
}

bool accepted(const Bytes& bytes) {
    const std::unique_ptr<unsigned char[]> exact(new unsigned char[bytes.size()]);
    if (!bytes.empty()) {
        std::memcpy(exact.get(), bytes.data(), bytes.size());
    }
    try {
        const recipe_index::IdxLayout layout =
            recipe_index::parse_idx({exact.get(), static_cast<std::int64_t>(bytes.size())});
        if (layout.end > static_cast<std::int64_t>(bytes.size())) {
            std::abort();
        }
        return true;
    } catch (const std::invalid_argument&) {
        return false;
    }
}

}  // namespace

int main(int count, char** arguments) {
    const long rounds = count > 1 ? std::atol(arguments[1]) : 1000000;
    std::mt19937_64 random(count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1);
    long sound = 0;
    for (long round = 0; round < rounds; ++round) {
        Bytes bytes = sound_file(random() % 12);
        damage(bytes, random);
        sound += accepted(bytes) ? 1 : 0;
    }
    std::printf("%ld damaged files: %ld accepted, %ld refused, no finding\n", rounds, sound, rounds - sound);
    return sound > 0 && sound < rounds ? 0 : 1;  // a fuzzer that only ever sees one outcome tests nothing
}
