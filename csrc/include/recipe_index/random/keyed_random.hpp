// Random numbers of one small thing (a document, a sample) from its key alone: SplitMix64, as in splitmix.hpp, so that
// they are the same whichever process draws them, and whatever it drew before.
#pragma once

#include <cstdint>

#include "recipe_index/random/splitmix.hpp"

namespace recipe_index {

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15u;

// The key of the thing `number` among those of `key`.
constexpr std::uint64_t key_of(std::uint64_t key, std::uint64_t number) { return mixed(key + (number + 1) * kGolden); }

class KeyedRandom {
public:
    explicit KeyedRandom(std::uint64_t key) : state_(key) {}

    std::uint64_t next() {
        state_ += kGolden;
        return mixed(state_);
    }

    // A number from 0 to below `end`; each is drawn with a probability that is off by less than 1 in 2**32.
    std::uint32_t below(std::uint32_t end) {
        return static_cast<std::uint32_t>(((next() >> 32) * end) >> 32);
    }

    bool chance(double probability) { return static_cast<double>(next() >> 11) * 0x1p-53 < probability; }

private:
    std::uint64_t state_;
};

}  // namespace recipe_index
