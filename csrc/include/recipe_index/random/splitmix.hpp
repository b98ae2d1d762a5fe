// The random numbers of the fast order: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators", 2014), each number computed from its place, so that none waits for the one before.
#pragma once

#include <cstdint>

namespace recipe_index {

constexpr std::uint64_t mixed(std::uint64_t value) {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
}

class SplitMix {
public:
    SplitMix(std::uint32_t seed, std::uint32_t use) : start_(mixed((std::uint64_t{use} << 32) | seed)) {}

    std::uint64_t word(std::int64_t place) const {
        return mixed(start_ + (static_cast<std::uint64_t>(place) + 1) * 0x9E3779B97F4A7C15u);
    }

private:
    std::uint64_t start_;
};

}  // namespace recipe_index
