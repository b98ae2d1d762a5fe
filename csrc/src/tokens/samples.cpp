#include "recipe_index/tokens/samples.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <stdexcept>
#include <string>

namespace recipe_index {
namespace {

constexpr std::int64_t kBlock = 1024;
using Block = std::array<std::int32_t, kBlock>;

// Copies entries of `order` from `start` on to `block` and checks them; returns how many. What was checked is what is
// used then, even where another thread writes to the array meanwhile.
std::int64_t checked_block(Span<std::int32_t> order, std::int64_t start, std::int64_t documents, Block& block) {
    const std::int64_t count = std::min(kBlock, order.size() - start);
    std::uint32_t largest = 0;  // as unsigned numbers the negative ones are the largest
    for (std::int64_t i = 0; i < count; ++i) {
        const std::int32_t number = order[start + i];
        block[static_cast<std::size_t>(i)] = number;
        largest = std::max(largest, static_cast<std::uint32_t>(number));
    }
    for (std::int64_t i = 0; largest >= documents && i < count; ++i) {
        const std::int32_t number = block[static_cast<std::size_t>(i)];
        if (number < 0 || number >= documents) {
            throw std::invalid_argument("order: expected indices from 0 to below " + std::to_string(documents) +
                                        ", got " + std::to_string(number) + " at index " + std::to_string(start + i));
        }
    }
    return count;
}

// Replaces the documents of a block by their sizes. The loads depend on nothing, so many are under way at once.
void look_up(Span<std::int32_t> sizes, std::int64_t count, Block& block) {
    for (std::int64_t i = 0; i < count; ++i) {
        block[static_cast<std::size_t>(i)] = sizes[block[static_cast<std::size_t>(i)]];
    }
}

// The largest size; none may be negative.
std::int32_t largest_size(Span<std::int32_t> sizes) {
    std::int32_t lowest = 0;
    std::int32_t largest = 0;
    for (std::int64_t i = 0; i < sizes.size(); ++i) {
        lowest = std::min(lowest, sizes[i]);
        largest = std::max(largest, sizes[i]);
    }
    for (std::int64_t i = 0; lowest < 0 && i < sizes.size(); ++i) {
        if (sizes[i] < 0) {
            throw std::invalid_argument("sizes: expected no negative number, got " + std::to_string(sizes[i]) +
                                        " at index " + std::to_string(i));
        }
    }
    return largest;
}

[[noreturn]] void refuse_samples(Span<std::int32_t> sizes, Span<std::int32_t> order, std::int64_t sequence,
                                 std::int64_t samples) {
    Block block;
    std::int64_t tokens = 0;
    for (std::int64_t start = 0; start < order.size(); start += kBlock) {
        const std::int64_t count = checked_block(order, start, sizes.size(), block);
        look_up(sizes, count, block);
        for (std::int64_t i = 0; i < count; ++i) {
            tokens += block[static_cast<std::size_t>(i)];
        }
    }
    const std::int64_t fit = std::max<std::int64_t>(0, tokens - 1) / sequence;
    throw std::invalid_argument("samples: expected at most " + std::to_string(fit) + ", got " +
                                std::to_string(samples) + ": the order holds " + std::to_string(tokens) + " tokens");
}

}  // namespace

void check_samples(Span<std::int32_t> sizes, Span<std::int32_t> order, std::int64_t sequence, std::int64_t samples) {
    const std::int64_t bound = order.size() * largest_size(sizes);
    if (bound == 0 || samples > (bound - 1) / sequence) {
        refuse_samples(sizes, order, sequence, samples);
    }
}

template <typename Index>
void sample_index(Span<std::int32_t> sizes, Span<std::int32_t> order, std::int64_t sequence, std::int64_t samples,
                  Index* out) {
    Block block;
    std::int64_t found = 0;  // starts written
    std::int64_t ahead = 0;  // tokens from the start of the document at hand to the next start of a sample
    for (std::int64_t start = 0; start < order.size(); start += kBlock) {
        const std::int64_t count = checked_block(order, start, sizes.size(), block);
        if (found > samples) {
            continue;  // the rest is only checked
        }
        look_up(sizes, count, block);
        for (std::int64_t i = 0; i < count && found <= samples; ++i) {
            const std::int64_t size = block[static_cast<std::size_t>(i)];
            // Written always, and kept if a sample starts in here: a branch would be guessed wrong too often.
            out[2 * found] = static_cast<Index>(start + i);
            out[2 * found + 1] = static_cast<Index>(ahead);
            const std::int64_t starts = ahead < size ? 1 : 0;
            found += starts;
            ahead += (-starts & sequence) - size;
            for (; ahead < 0 && found <= samples; ++found) {  // further samples, in a document longer than one
                out[2 * found] = static_cast<Index>(start + i);
                out[2 * found + 1] = static_cast<Index>(ahead + size);
                ahead += sequence;
            }
        }
    }
    if (found <= samples) {
        refuse_samples(sizes, order, sequence, samples);
    }
    out[0] = 0;  // Megatron starts at the first document even where that is empty
    out[1] = 0;
}

template void sample_index(Span<std::int32_t>, Span<std::int32_t>, std::int64_t, std::int64_t, std::int32_t*);
template void sample_index(Span<std::int32_t>, Span<std::int32_t>, std::int64_t, std::int64_t, std::int64_t*);

}  // namespace recipe_index
