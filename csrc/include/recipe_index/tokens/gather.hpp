// Batches straight from the memory map.
#pragma once

#include <cstdint>

#include "recipe_index/span.hpp"

namespace recipe_index {

// The tokens of a .bin file, and which of them are which sequence.
template <typename Token>
struct Tokens {
    Span<Token> ids;
    Span<std::int64_t> starts;
    Span<std::int32_t> sizes;
};

// The samples of sample_index(): pairs of a position in `order` and an offset into that sequence.
template <typename Index>
struct Samples {
    Span<std::int32_t> order;
    Span<Index> starts;
};

// Writes sequence + 1 ids of each of the samples `which` to `out`. Throws std::invalid_argument where an id is not from
// 0 to below `limit`, or the arrays do not fit each other. Only what the samples need is looked at, all of it before
// it is used. Token is uint16 or int32, Index is int32 or int64.
template <typename Token, typename Index>
void gather(const Tokens<Token>& tokens, const Samples<Index>& samples, Span<std::int64_t> which,
            std::int64_t sequence, std::int64_t limit, std::int64_t* out);

}  // namespace recipe_index
