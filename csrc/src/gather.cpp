#include "recipe_index/gather.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace recipe_index {
namespace {

using std::to_string;

// Widens `count` ids; returns the largest, where negative ones count as larger than all others.
template <typename Token>
std::int64_t widen(const Span<Token>& ids, std::int64_t start, std::int64_t count, std::int64_t* out) {
    using Unsigned = std::make_unsigned_t<Token>;
    Unsigned largest = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        const Token id = ids[start + i];
        largest = std::max(largest, static_cast<Unsigned>(id));
        out[i] = id;
    }
    return static_cast<std::int64_t>(largest);
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
    // As unsigned numbers negative ids are above 2^31, and no id of either type is above 2^32.
    const std::int64_t bound = std::min(limit, std::int64_t{1} << 31);
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
        if (widen(tokens.ids, place.start + offset, taken, out + filled) >= bound) {
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
