// Pairs of segments for BERT's pre-training, as places in a store of tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "recipe_index/span.hpp"

namespace recipe_index {

// Both segments lie contiguous in the store, because sentences of a document do: a pair needs none of its tokens.
struct Pair {
    std::int64_t a_start, b_start;  // tokens from the start of the store
    std::uint64_t key;              // what the pair's own random numbers are drawn from
    std::uint16_t a_length, b_length;
    std::uint8_t random_next;  // 1: b comes from another document
    std::uint8_t single;       // 1: there was one sentence only, so that no other b was possible
    std::uint16_t unused;
};
static_assert(sizeof(Pair) == 32, "pairs are written to files as they are");

struct Documents {
    Span<std::int64_t> sentences;  // token where each sentence starts; one more at the end
    Span<std::int64_t> starts;     // sentence where each document starts; one more at the end
    Span<std::int64_t> pool;       // the documents in use, at least two
};

// Appends the pairs of the documents `first` to below `last` of the pool. Throws std::invalid_argument for a document or
// a sentence that it comes upon and that is empty or not there.
void make_pairs(const Documents& documents, std::int64_t first, std::int64_t last, std::int64_t sequence,
                double short_probability, std::uint64_t key, std::vector<Pair>& out);

}  // namespace recipe_index
