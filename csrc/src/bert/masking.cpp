#include "recipe_index/bert/masking.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "recipe_index/random/keyed_random.hpp"

namespace recipe_index {
namespace {

// The tokens that are masked or left out together: one, or all of a word.
struct Candidate {
    std::int32_t start, length;
};

class Masker {
public:
    explicit Masker(const Masking& with) : with_(with) {}

    // Masks `length` tokens in place, and notes the positions in rising order with the ids that stood there.
    void mask(std::int32_t* tokens, std::int32_t length, std::uint64_t key, std::int32_t* positions,
              std::int32_t* ids) {
        KeyedRandom random(key);
        find_candidates(tokens, length);
        choose(target(length), random);
        std::sort(chosen_.begin(), chosen_.end());
        for (std::size_t i = 0; i < chosen_.size(); ++i) {
            std::int32_t& token = tokens[chosen_[i]];
            positions[i] = chosen_[i];
            ids[i] = token;
            token = replacement(token, random);
        }
    }

private:
    std::int32_t target(std::int32_t length) const {
        // Halves go to the even number, as in Python, where the published algorithm rounds.
        const auto share = static_cast<std::int64_t>(std::nearbyint(length * with_.probability));
        return static_cast<std::int32_t>(std::min(with_.most, std::max(std::int64_t{1}, share)));
    }

    void find_candidates(const std::int32_t* tokens, std::int32_t length) {
        candidates_.clear();
        bool word = false;  // whether the token before belongs to a word
        for (std::int32_t i = 0; i < length; ++i) {
            const std::uint8_t kind = with_.kinds[tokens[i]];
            if ((kind & kSpecialToken) != 0) {
                word = false;
            } else if (with_.whole_words && word && (kind & kContinuation) != 0) {
                ++candidates_.back().length;
            } else {
                candidates_.push_back({i, 1});
                word = true;
            }
        }
    }

    // Takes candidates in random order as long as they fit; the order is drawn only as far as it is needed.
    void choose(std::int32_t wanted, KeyedRandom& random) {
        chosen_.clear();
        for (std::size_t i = 0; i < candidates_.size() && chosen_.size() < static_cast<std::size_t>(wanted); ++i) {
            std::swap(candidates_[i], candidates_[i + random.below(static_cast<std::uint32_t>(candidates_.size() - i))]);
            const Candidate candidate = candidates_[i];
            if (chosen_.size() + static_cast<std::size_t>(candidate.length) <= static_cast<std::size_t>(wanted)) {
                for (std::int32_t j = 0; j < candidate.length; ++j) {
                    chosen_.push_back(candidate.start + j);
                }
            }
        }
    }

    std::int32_t replacement(std::int32_t token, KeyedRandom& random) const {
        if (random.chance(0.8)) {
            return with_.mask;
        }
        if (random.chance(0.5)) {
            return token;
        }
        std::int32_t drawn;
        do {
            drawn = static_cast<std::int32_t>(random.below(static_cast<std::uint32_t>(with_.kinds.size())));
        } while ((with_.kinds[drawn] & kSpecialToken) != 0);
        return drawn;
    }

    const Masking& with_;
    std::vector<Candidate> candidates_;
    std::vector<std::int32_t> chosen_;
};

[[noreturn]] void refuse(std::int64_t pair, const std::string& what) {
    throw std::invalid_argument("pairs: pair " + std::to_string(pair) + " " + what);
}

template <typename Token>
std::int32_t* copy(Span<Token> tokens, std::int64_t start, std::int64_t length, std::int64_t vocabulary,
                   std::int64_t pair, std::int32_t* to) {
    if (start < 0 || start > tokens.size() - length) {
        refuse(pair, "lies outside of the tokens");
    }
    for (std::int64_t i = start; i < start + length; ++i) {
        const auto id = static_cast<std::int64_t>(tokens[i]);
        if (id < 0 || id >= vocabulary) {
            refuse(pair, "has the token id " + std::to_string(id) + ", which is not in the vocabulary");
        }
        *to++ = static_cast<std::int32_t>(id);
    }
    return to;
}

}  // namespace

template <typename Token>
void copy_segments(Span<Token> tokens, Span<std::int64_t> starts, Span<std::int64_t> lengths, Token* out) {
    for (std::int64_t i = 0; i < starts.size(); ++i) {
        const std::int64_t start = starts[i], length = lengths[i];
        if (start < 0 || length < 0 || start > tokens.size() - length) {
            throw std::invalid_argument("starts: segment " + std::to_string(i) + " lies outside of the tokens");
        }
        std::memcpy(out, tokens.at(start), static_cast<std::size_t>(length) * sizeof(Token));
        out += length;
    }
}

template void copy_segments(Span<std::uint16_t>, Span<std::int64_t>, Span<std::int64_t>, std::uint16_t*);
template void copy_segments(Span<std::int32_t>, Span<std::int64_t>, Span<std::int64_t>, std::int32_t*);

template <typename Token>
void fill_rows(Span<Token> tokens, Span<Pair> pairs, const Masking& masking, const Rows& rows) {
    Masker masker(masking);
    const std::int64_t vocabulary = masking.kinds.size();
    for (std::int64_t i = 0; i < pairs.size(); ++i) {
        const Pair pair = pairs[i];
        const std::int64_t length = pair.a_length + pair.b_length + std::int64_t{3};
        if (length > masking.sequence) {
            refuse(i, "is longer than a row");
        }
        std::int32_t* const row = rows.input_ids + i * masking.sequence;
        std::int32_t* to = row;
        *to++ = masking.cls;
        to = copy(tokens, pair.a_start, pair.a_length, vocabulary, i, to);
        *to++ = masking.sep;
        to = copy(tokens, pair.b_start, pair.b_length, vocabulary, i, to);
        *to++ = masking.sep;
        std::fill(to, row + masking.sequence, masking.pad);
        std::fill_n(rows.input_mask + i * masking.sequence, length, std::int8_t{1});
        std::fill_n(rows.segment_ids + i * masking.sequence + pair.a_length + 2, pair.b_length + 1, std::int8_t{1});
        masker.mask(row, static_cast<std::int32_t>(length), pair.key, rows.positions + i * masking.most,
                    rows.ids + i * masking.most);
        rows.next_sentence[i] = static_cast<std::int8_t>(pair.random_next);
    }
}

template void fill_rows(Span<std::uint16_t>, Span<Pair>, const Masking&, const Rows&);
template void fill_rows(Span<std::int32_t>, Span<Pair>, const Masking&, const Rows&);

}  // namespace recipe_index
