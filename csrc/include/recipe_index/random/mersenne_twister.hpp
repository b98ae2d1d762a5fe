// MT19937 (Matsumoto and Nishimura, 1998), filled from a seed of 32 bits as std::mt19937 and NumPy's RandomState do.
//
// It gives what std::mt19937 gives. That one keeps its state in 64-bit numbers and finishes each number by itself, which
// no compiler turns into vector instructions: it took six times as long.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace recipe_index {

class MersenneTwister {
public:
    explicit MersenneTwister(std::uint32_t seed) {
        std::uint32_t last = seed;
        state_[0] = seed;
        for (std::uint32_t i = 1; i < kSize; ++i) {
            last = 1812433253u * (last ^ (last >> 30)) + i;
            state_[i] = last;
        }
    }

    std::uint32_t next() {
        if (at_ == kSize) {
            refill();
            at_ = 0;
        }
        return numbers_[at_++];
    }

private:
    static constexpr std::size_t kSize = 624;
    static constexpr std::size_t kMiddle = 397;

    static std::uint32_t twist(std::uint32_t upper, std::uint32_t lower, std::uint32_t middle) {
        const std::uint32_t joined = (upper & 0x80000000u) | (lower & 0x7FFFFFFFu);
        return middle ^ (joined >> 1) ^ ((joined & 1u) != 0 ? 0x9908B0DFu : 0u);
    }

    void refill() {
        for (std::size_t i = 0; i < kSize - kMiddle; ++i) {
            state_[i] = twist(state_[i], state_[i + 1], state_[i + kMiddle]);
        }
        for (std::size_t i = kSize - kMiddle; i < kSize - 1; ++i) {
            state_[i] = twist(state_[i], state_[i + 1], state_[i + kMiddle - kSize]);
        }
        state_[kSize - 1] = twist(state_[kSize - 1], state_[0], state_[kMiddle - 1]);
        for (std::size_t i = 0; i < kSize; ++i) {
            std::uint32_t number = state_[i];
            number ^= number >> 11;
            number ^= (number << 7) & 0x9D2C5680u;
            number ^= (number << 15) & 0xEFC60000u;
            numbers_[i] = number ^ (number >> 18);
        }
    }

    std::array<std::uint32_t, kSize> state_{};
    std::array<std::uint32_t, kSize> numbers_{};
    std::size_t at_ = kSize;
};

}  // namespace recipe_index
