// Sequences of different lengths laid into rows of one length.
#pragma once

#include <cstdint>
#include <vector>

#include "recipe_index/span.hpp"

namespace recipe_index {

// Lengths that share a row, by the place of each in a list of lengths, and how many rows are filled so.
struct Pattern {
    std::vector<std::int32_t> items;
    std::int64_t rows;
};

// Patterns of at most `most` lengths and at most `capacity` tokens that hold counts[i] sequences of lengths[i], each
// once. `lengths` rise, are from 1 to `capacity`, and have counts of at least 1.
std::vector<Pattern> packing_patterns(const std::vector<std::int32_t>& lengths, const std::vector<std::int64_t>& counts,
                                      std::int64_t capacity, std::int64_t most);

// Which sequences make up each row.
struct Packed {
    std::vector<std::int64_t> order;  // all sequences, row by row
    std::vector<std::int64_t> rows;   // where each row starts in `order`; one more at the end
};

// Packs sequences into rows of `capacity` tokens, at most `most` in each; the rows are in a random order.
// Throws std::invalid_argument for a length that is not from 1 to `capacity`.
Packed pack(Span<std::int32_t> lengths, std::int64_t capacity, std::int64_t most, std::uint64_t key);

}  // namespace recipe_index
