// How much the functions take; the Python twin has the same numbers in plain_checks.py.
#pragma once

#include <cstdint>
#include <limits>

namespace recipe_index {

// Entries of any result: far more than memory holds, and what is computed from them cannot overflow 64 bits.
constexpr std::int64_t kMostEntries = std::int64_t{1} << 40;
// Entries of a document order: their tokens, below 2^31 each, can then be counted in 64 bits.
constexpr std::int64_t kMostOrdered = std::int64_t{1} << 32;
constexpr std::int64_t kMostSequence = std::numeric_limits<std::int32_t>::max() - std::int64_t{1};
constexpr std::int64_t kMostSeed = std::numeric_limits<std::uint32_t>::max();

}  // namespace recipe_index
