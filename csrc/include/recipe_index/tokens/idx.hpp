// The reader of Megatron's .idx files, version 1: magic 9 bytes, version uint64, token type uint8, number of sequences
// uint64, number of document boundaries uint64; then sizes int32, byte pointers int64, document boundaries int64, and
// in multimodal files one mode byte per sequence. Little-endian, without padding.
#pragma once

#include <cstdint>

#include "recipe_index/span.hpp"

namespace recipe_index {

// Where the parts of a file are, in bytes from its beginning.
struct IdxLayout {
    int dtype_code;
    std::int64_t sizes;
    std::int64_t pointers;
    std::int64_t documents;
    std::int64_t end;
};

// Checks all of a file. Throws std::invalid_argument where it is of another kind, version or length, or where its
// numbers contradict each other.
IdxLayout parse_idx(Span<unsigned char> data);

}  // namespace recipe_index
