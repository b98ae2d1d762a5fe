#include "recipe_index/tokens/idx.hpp"

#include <array>
#include <stdexcept>
#include <string>

namespace recipe_index {
namespace {

using std::to_string;

constexpr std::int64_t kHeader = 34;
// Bytes of a token of each type; 0 for what is none (6 and 7 are floating point).
constexpr std::array<int, 9> kWidths{0, 1, 1, 2, 4, 8, 0, 0, 2};

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

std::uint64_t number_at(Span<unsigned char> data, std::int64_t at) { return Span<std::uint64_t>(data.at(at), 1)[0]; }

void check_sequences(Span<std::int32_t> sizes, Span<std::int64_t> pointers, std::int64_t width) {
    std::uint64_t expected = 0;  // does not wrap: it was equal to a pointer, below 2^63, one step before
    for (std::int64_t i = 0; i < sizes.size(); ++i) {
        const std::int32_t size = sizes[i];
        const std::int64_t pointer = pointers[i];
        if (size < 0) {
            refuse("sequence " + to_string(i) + ": expected no negative size, got " + to_string(size));
        }
        if (pointer < 0 || static_cast<std::uint64_t>(pointer) != expected) {
            refuse("sequence " + to_string(i) + ": expected to start at byte " + to_string(expected) + ", got " +
                   to_string(pointer));
        }
        expected += static_cast<std::uint64_t>(size * width);
    }
}

void check_documents(Span<std::int64_t> bounds, std::int64_t sequences) {
    std::int64_t start = bounds[0];
    if (start != 0) {
        refuse("documents: expected the first to start at sequence 0, got " + to_string(start));
    }
    for (std::int64_t i = 1; i < bounds.size(); ++i) {
        const std::int64_t end = bounds[i];
        if (end < start) {
            refuse("documents: document " + to_string(i - 1) + " ends at sequence " + to_string(end) +
                   ", before its start " + to_string(start));
        }
        start = end;
    }
    if (start != sequences) {
        refuse("documents: expected the last to end at sequence " + to_string(sequences) + ", got " + to_string(start));
    }
}

}  // namespace

IdxLayout parse_idx(Span<unsigned char> data) {
    if (data.size() < kHeader) {
        refuse("expected a header of " + to_string(kHeader) + " bytes, got " + to_string(data.size()) + " bytes");
    }
    if (std::memcmp(data.at(0), "MMIDIDX\0\0", 9) != 0) {
        refuse("expected an .idx file, which begins with MMIDIDX");
    }
    if (const std::uint64_t version = number_at(data, 9); version != 1) {
        refuse("expected version 1, got " + to_string(version));
    }
    const unsigned code = data[17];
    if (code >= kWidths.size() || kWidths[code] == 0) {
        refuse("expected a token type of 1 to 5 or 8, got " + to_string(code));
    }
    const std::uint64_t sequences = number_at(data, 18);
    const std::uint64_t boundaries = number_at(data, 26);
    if (boundaries < 1) {
        refuse("expected at least one document boundary, got none");
    }
    const auto bytes = static_cast<std::uint64_t>(data.size());
    const bool absurd = sequences > bytes || boundaries > bytes;  // then the products below could overflow
    const std::uint64_t wanted = absurd ? 0 : kHeader + 12 * sequences + 8 * boundaries;
    if (absurd || (bytes != wanted && bytes != wanted + sequences)) {
        refuse(to_string(sequences) + " sequences and " + to_string(boundaries) +
               " document boundaries do not make a file of " + to_string(bytes) + " bytes");
    }
    const auto count = static_cast<std::int64_t>(sequences);
    const std::int64_t pointers = kHeader + 4 * count;
    const std::int64_t documents = kHeader + 12 * count;
    check_sequences({data.at(kHeader), count}, {data.at(pointers), count}, kWidths[code]);
    check_documents({data.at(documents), static_cast<std::int64_t>(boundaries)}, count);
    return {static_cast<int>(code), kHeader, pointers, documents, static_cast<std::int64_t>(wanted)};
}

}  // namespace recipe_index
