// Rows that hold several samples of BERT's pre-training one behind the other.
#pragma once

#include <cstdint>

#include "recipe_index/span.hpp"

namespace recipe_index {

// Samples as they lie in a shard.
struct Unpacked {
    Span<std::int32_t> input_ids;      // [samples, sequence]
    Span<std::int8_t> segment_ids;     // [samples, sequence]
    Span<std::int32_t> lengths;        // [samples]: tokens without padding
    Span<std::int32_t> positions;      // [samples, most]: of the predictions; 0 where there is none
    Span<std::int32_t> ids;            // [samples, most]
    Span<std::int8_t> next_sentence;   // [samples]
    std::int64_t sequence, most;
};

// Which samples share a row: order[rows[r]] to below order[rows[r + 1]].
struct Groups {
    Span<std::int64_t> order, rows;
};

// Where the rows go, all zero; with their sizes.
struct PackedRows {
    std::int32_t *input_ids, *input_mask;  // [rows, capacity]; the mask counts the samples of a row from 1
    std::int8_t* segment_ids;              // [rows, capacity]
    std::int32_t* token_positions;         // [rows, capacity]: start again with each sample
    std::int32_t *positions, *ids;         // [rows, predictions]
    std::int32_t* next_positions;          // [rows, slots]: where each sample starts
    std::int8_t* next_labels;              // [rows, slots]
    std::int32_t* next_weights;            // [rows, slots]: 1 for each sample, then 0
    std::int64_t capacity, predictions, slots;
};

// Throws std::invalid_argument where a row would hold more than it has room for, or a sample is not as it should be.
void pack_rows(const Unpacked& samples, const Groups& groups, const PackedRows& out);

}  // namespace recipe_index
