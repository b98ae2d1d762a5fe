#include "recipe_index/tokens/gather.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace recipe_index {
namespace {

using std::to_string;

// Widens `count` ids; returns whether all are below `limit`. Both versions are what the smallest vector instructions of
// a 64-bit x86 can do: they have a maximum of 16 bits, but none of 32.
bool widen(const Span<std::uint16_t>& ids, std::int64_t start, std::int64_t count, std::int64_t limit,
           std::int64_t* out) {
    std::uint16_t largest = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        const std::uint16_t id = ids[start + i];
        largest = std::max(largest, id);
        out[i] = id;
    }
    return largest < limit;
}

bool widen(const Span<std::int32_t>& ids, std::int64_t start, std::int64_t count, std::int64_t limit,
           std::int64_t* out) {
    const auto last = static_cast<std::uint32_t>(std::min(limit - 1, std::int64_t{0x7FFFFFFF}));
    std::uint32_t signs = 0;  // the sign of `id` is set where it is negative, that of `last - id` where it is too large
    for (std::int64_t i = 0; i < count; ++i) {
        const std::int32_t id = ids[start + i];
        signs |= static_cast<std::uint32_t>(id) | (last - static_cast<std::uint32_t>(id));
        out[i] = id;
    }
    return (signs >> 31) == 0;
}

[[noreturn]] void refuse_id(const std::int64_t* ids, std::int64_t sample, std::int32_t number, std::int64_t offset,
                            std::int64_t limit) {
    while (*ids >= 0 && *ids < limit) {
        ++ids;
        ++offset;
    }
    throw std::invalid_argument("sample " + to_string(sample) + ": sequence " + to_string(number) + " has token id " +
                                to_string(*ids) + " at position " + to_string(offset) + ", expected from 0 to below " +
                                to_string(limit));
}

// First token of sequence `number`, and how many it has.
template <typename Token>
struct Place {
    Place(const Tokens<Token>& tokens, std::int32_t number) : start(tokens.starts[number]), size(tokens.sizes[number]) {
        const std::int64_t all = tokens.ids.size();
        if (size < 0 || start < 0 || start > all || size > all - start) {
            throw std::invalid_argument("starts: sequence " + to_string(number) + " has " + to_string(size) +
                                        " tokens from " + to_string(start) + " on, the file has " + to_string(all));
        }
    }
    std::int64_t start;
    std::int64_t size;
};

template <typename Token, typename Index>
void gather_one(const Tokens<Token>& tokens, const Samples<Index>& samples, std::int64_t sample, std::int64_t wanted,
                std::int64_t limit, std::int64_t* out) {
    std::int64_t position = samples.starts[2 * sample];
    std::int64_t offset = samples.starts[2 * sample + 1];
    if (position < 0 || offset < 0) {
        throw std::invalid_argument("samples_index: sample " + to_string(sample) + " starts at position " +
                                    to_string(position) + ", offset " + to_string(offset));
    }
    const std::int64_t documents = tokens.sizes.size();
    for (std::int64_t filled = 0; filled < wanted; ++position, offset = 0) {
        if (position >= samples.order.size()) {
            throw std::invalid_argument("samples_index: sample " + to_string(sample) + " gets " + to_string(filled) +
                                        " of its " + to_string(wanted) + " tokens before the order ends");
        }
        const std::int32_t number = samples.order[position];
        if (number < 0 || number >= documents) {
            throw std::invalid_argument("order: expected indices from 0 to below " + to_string(documents) + ", got " +
                                        to_string(number) + " at index " + to_string(position));
        }
        const Place<Token> place(tokens, number);
        if (offset > place.size) {
            throw std::invalid_argument("samples_index: sample " + to_string(sample) + " starts at offset " +
                                        to_string(offset) + " of sequence " + to_string(number) + ", which has " +
                                        to_string(place.size) + " tokens");
        }
        const std::int64_t taken = std::min(place.size - offset, wanted - filled);
        if (!widen(tokens.ids, place.start + offset, taken, limit, out + filled)) {
            refuse_id(out + filled, sample, number, offset, limit);
        }
        filled += taken;
    }
}

}  // namespace

template <typename Token, typename Index>
void gather(const Tokens<Token>& tokens, const Samples<Index>& samples, Span<std::int64_t> which,
            std::int64_t sequence, std::int64_t limit, std::int64_t* out) {
    const std::int64_t end = samples.starts.size() / 2 - 1;
    for (std::int64_t i = 0; i < which.size(); ++i) {
        const std::int64_t sample = which[i];
        if (sample < 0 || sample >= end) {
            throw std::invalid_argument("which: expected indices from 0 to below " + to_string(end) + ", got " +
                                        to_string(sample) + " at index " + to_string(i));
        }
    }
    for (std::int64_t i = 0; i < which.size(); ++i) {
        gather_one(tokens, samples, which[i], sequence + 1, limit, out + i * (sequence + 1));
    }
}

#define RECIPE_INDEX_GATHER(Token, Index)                                                                   \
    template void gather(const Tokens<Token>&, const Samples<Index>&, Span<std::int64_t>, std::int64_t,      \
                         std::int64_t, std::int64_t*);
RECIPE_INDEX_GATHER(std::uint16_t, std::int32_t)
RECIPE_INDEX_GATHER(std::uint16_t, std::int64_t)
RECIPE_INDEX_GATHER(std::int32_t, std::int32_t)
RECIPE_INDEX_GATHER(std::int32_t, std::int64_t)

}  // namespace recipe_index
