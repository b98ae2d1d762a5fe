// Where each sample starts.
#pragma once

#include <cstdint>

#include "recipe_index/span.hpp"

namespace recipe_index {

// Throws std::invalid_argument where a size is negative, or where `samples` would not fit even if all documents were of
// the largest size: before memory is asked for that a sound call would fill.
void check_samples(Span<std::int32_t> sizes, Span<std::int32_t> order, std::int64_t sequence, std::int64_t samples);

// Writes samples + 1 pairs to `out`: position in `order`, and offset into that document. Sample i starts at token
// i * sequence of the documents laid end to end. Index is int32 or int64. Throws std::invalid_argument where `order`
// holds something else than indices of `sizes`, or too few tokens.
template <typename Index>
void sample_index(Span<std::int32_t> sizes, Span<std::int32_t> order, std::int64_t sequence, std::int64_t samples,
                  Index* out);

}  // namespace recipe_index
