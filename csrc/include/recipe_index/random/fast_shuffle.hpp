// A uniform shuffle that stays inside the processor's caches.
//
// A shuffle that swaps over the whole array waits for memory at each step. This one (Rao 1961, Sandelius 1962) deals
// the entries into buckets at random, lays the buckets end to end, and shuffles inside each. It needs no memory beside
// the result: the buckets are drawn twice, first to count them, then to fill them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "recipe_index/random/prefetch.hpp"
#include "recipe_index/random/splitmix.hpp"

namespace recipe_index {

// What is shuffled: two shuffles of one seed share no random numbers.
enum class Use : std::uint32_t { documents = 1, last_documents = 2, samples = 3, last_samples = 4 };

namespace detail {

constexpr std::uint32_t kInsideBucket = 8;  // added to a Use: what decides inside a bucket
constexpr std::int64_t kBucketEntries = std::int64_t{1} << 15;
constexpr int kMostBits = 12;

inline int bucket_bits(std::int64_t entries) {
    int bits = 0;
    while (bits < kMostBits && (entries >> bits) > kBucketEntries) {
        ++bits;
    }
    return bits;
}

// Calls visit(bucket) for each of `count` entries. Four of them share a word, 16 bits each, lowest first.
template <typename Visit>
void each_bucket(const SplitMix& random, std::int64_t count, int bits, Visit visit) {
    const int shift = 16 - bits;
    const auto lane = [shift](std::uint64_t word) { return static_cast<std::size_t>((word & 0xFFFFu) >> shift); };
    for (std::int64_t i = 0; i < count / 4; ++i) {
        const std::uint64_t word = random.word(i);
        visit(lane(word));
        visit(lane(word >> 16));
        visit(lane(word >> 32));
        visit(lane(word >> 48));
    }
    std::uint64_t word = random.word(count / 4);
    for (std::int64_t i = 0; i < count % 4; ++i, word >>= 16) {
        visit(lane(word));
    }
}

// Shuffles out[start, end) as Durstenfeld does (1964). Two places share a word, 32 bits each.
template <typename T>
void shuffle_inside(const SplitMix& random, T* out, std::int64_t start, std::int64_t end) {
    constexpr std::int64_t kBlock = 512;
    std::array<std::uint32_t, 2 * kBlock> randoms;
    for (std::int64_t block = start & ~std::int64_t{1}; block < end; block += 2 * kBlock) {
        const std::int64_t words = std::min(kBlock, (end - block + 1) / 2);
        for (std::int64_t i = 0; i < words; ++i) {  // a loop of its own: it has no branch and runs ahead
            const std::uint64_t word = random.word(block / 2 + i);
            randoms[static_cast<std::size_t>(2 * i)] = static_cast<std::uint32_t>(word);
            randoms[static_cast<std::size_t>(2 * i + 1)] = static_cast<std::uint32_t>(word >> 32);
        }
        const std::int64_t stop = std::min(end, block + 2 * kBlock);
        for (std::int64_t place = std::max(block, start); place < stop; ++place) {
            const auto choices = static_cast<std::uint64_t>(place - start + 1);
            const std::uint64_t chosen = (randoms[static_cast<std::size_t>(place - block)] * choices) >> 32;
            std::swap(out[place], out[start + static_cast<std::int64_t>(chosen)]);
        }
    }
}

}  // namespace detail

// Writes what next() gives, called `count` times, to `out` in an order that depends on `seed` and `use` alone.
template <typename T, typename Next>
void fast_shuffle(T* out, std::int64_t count, std::uint32_t seed, Use use, Next next) {
    const SplitMix deal(seed, static_cast<std::uint32_t>(use));
    const SplitMix inside(seed, static_cast<std::uint32_t>(use) + detail::kInsideBucket);
    const int bits = detail::bucket_bits(count);

    std::vector<std::int64_t> ends(std::size_t{1} << bits, 0);
    detail::each_bucket(deal, count, bits, [&](std::size_t bucket) { ++ends[bucket]; });
    std::int64_t filled = 0;
    for (std::int64_t& end : ends) {
        filled += std::exchange(end, filled);  // from its size to its start, which filling moves to its end
    }
    detail::each_bucket(deal, count, bits, [&](std::size_t bucket) {
        const std::int64_t place = ends[bucket]++;
        prefetch_write(out + place, 64);  // the bucket's next cache line: more are being filled than a cache watches
        out[place] = next();
    });
    std::int64_t start = 0;
    for (const std::int64_t end : ends) {
        detail::shuffle_inside(inside, out, start, end);
        start = end;
    }
}

}  // namespace recipe_index
