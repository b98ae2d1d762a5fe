// Which of several datasets each sample comes from.
#pragma once

#include <cstdint>

#include "recipe_index/span.hpp"

namespace recipe_index {

// Sample i comes from the dataset that is furthest behind weight * i, the first of them where several are. Throws
// std::invalid_argument where a weight is negative or not finite, or none is above 0.
void blending_index(Span<double> weights, std::int64_t samples, std::int16_t* datasets, std::int64_t* numbers);

}  // namespace recipe_index
