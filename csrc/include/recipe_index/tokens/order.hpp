// The order of documents and of samples.
#pragma once

#include <cstdint>
#include <vector>

#include "recipe_index/span.hpp"

namespace recipe_index {

// Writes `epochs` times all of `documents` to `out`, shuffled across epochs, or the last epoch apart from the others.
// Throws std::invalid_argument where a document is negative.
void document_order(Span<std::int32_t> documents, std::int64_t epochs, std::uint32_t seed, bool separate_last_epoch,
                    bool megatron, std::int32_t* out);

// Writes the numbers below `separate`, shuffled, then those from there to `total`, shuffled, to `out`. The lengths in
// `drawn` were shuffled before by the same generator. Index is uint32 or int64.
template <typename Index>
void shuffle_index(std::int64_t separate, std::int64_t total, std::uint32_t seed, bool megatron,
                   const std::vector<std::int64_t>& drawn, Index* out);

}  // namespace recipe_index
