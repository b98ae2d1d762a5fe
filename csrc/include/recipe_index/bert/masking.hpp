// Samples of BERT's pre-training: pairs of segments with some tokens masked, as rows of arrays.
#pragma once

#include <cstdint>

#include "recipe_index/bert/pairs.hpp"
#include "recipe_index/span.hpp"

namespace recipe_index {

// What a token id is.
constexpr std::uint8_t kSpecialToken = 1;   // never predicted, and never drawn as a random word
constexpr std::uint8_t kContinuation = 2;  // continues the word of the token before it

struct Masking {
    std::int32_t cls, sep, mask, pad;
    Span<std::uint8_t> kinds;  // of each id; at least one is no special token
    std::int64_t sequence;     // tokens of a row
    std::int64_t most;         // predictions of a row at most
    double probability;        // share of the tokens that are predicted
    bool whole_words;          // predict all pieces of a word, or none
};

// Where the rows go: [pairs, sequence], [pairs, most] and [pairs], all zero.
struct Rows {
    std::int32_t* input_ids;
    std::int8_t* input_mask;
    std::int8_t* segment_ids;
    std::int32_t* positions;
    std::int32_t* ids;
    std::int8_t* next_sentence;
};

// Copies `lengths[i]` tokens from `starts[i]` on, for each i, one behind the other. Throws std::invalid_argument for what
// lies outside of the tokens.
template <typename Token>
void copy_segments(Span<Token> tokens, Span<std::int64_t> starts, Span<std::int64_t> lengths, Token* out);

// Throws std::invalid_argument for a pair that is longer than a row or lies outside of the store, and for a token that
// is not in the vocabulary.
template <typename Token>
void fill_rows(Span<Token> tokens, Span<Pair> pairs, const Masking& masking, const Rows& rows);

}  // namespace recipe_index
