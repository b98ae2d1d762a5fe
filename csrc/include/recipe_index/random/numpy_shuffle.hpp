// NumPy's RandomState(seed).shuffle, bit for bit, for Megatron's order.
//
// NumPy shuffles from the last entry down, each time with a number below a power of two that it draws anew until it is
// not too large. Those numbers depend on nothing in the
// array, so they are drawn a block ahead of the swaps, and the memory that the swaps will touch is asked for early.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "recipe_index/random/mersenne_twister.hpp"
#include "recipe_index/random/prefetch.hpp"

namespace recipe_index {

class NumpyShuffle {
public:
    explicit NumpyShuffle(std::uint32_t seed) : twister_(seed) {}

    // Shuffles out[0, count), which is at most 2^32 entries.
    template <typename T>
    void shuffle(T* out, std::int64_t count) {
        std::array<std::uint32_t, kBlock> now{};
        std::array<std::uint32_t, kBlock> ahead{};
        std::int64_t last = count - 1;
        std::int64_t size = draw(last, now);
        while (last > 0) {
            const std::int64_t ahead_size = draw(last - size, ahead);
            for (std::int64_t i = 0; i < ahead_size; ++i) {
                prefetch_write(out + ahead[static_cast<std::size_t>(i)]);
            }
            for (std::int64_t i = 0; i < size; ++i) {
                std::swap(out[last - i], out[now[static_cast<std::size_t>(i)]]);
            }
            last -= size;
            size = ahead_size;
            std::swap(now, ahead);
        }
    }

    // Draws what shuffling so many entries draws.
    void skip(std::int64_t count) {
        std::array<std::uint32_t, kBlock> unused{};
        for (std::int64_t last = count - 1; last > 0;) {
            last -= draw(last, unused);
        }
    }

private:
    static constexpr std::int64_t kBlock = 64;  // cache lines asked for in advance: a small part of the first level

    // The partners of the entries last, last - 1, ..., at most a block of them; returns how many.
    std::int64_t draw(std::int64_t last, std::array<std::uint32_t, kBlock>& partners) {
        const std::int64_t wanted = std::clamp<std::int64_t>(last, 0, kBlock);
        std::int64_t found = 0;
        while (found < wanted) {
            const auto high = static_cast<std::uint32_t>(last - found);
            std::uint32_t mask = high;
            for (int shift = 1; shift < 32; shift *= 2) {
                mask |= mask >> shift;
            }
            // The mask holds while the entry is at or above its highest bit.
            const std::int64_t until = std::min<std::int64_t>(wanted, last - (mask >> 1));
            while (found < until) {
                const std::uint32_t number = twister_.next() & mask;
                partners[static_cast<std::size_t>(found)] = number;  // overwritten where it is too large: no branch
                found += number <= static_cast<std::uint32_t>(last - found) ? 1 : 0;
            }
        }
        return wanted;
    }

    MersenneTwister twister_;
};

}  // namespace recipe_index
