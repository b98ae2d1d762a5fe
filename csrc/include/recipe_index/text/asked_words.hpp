// Words and their token ids, which another tokenizer is asked for, all that are missing at a time, and which are then
// remembered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "recipe_index/text/word_table.hpp"

namespace recipe_index {

// Token ids of texts, one behind the other, and how many belong to each.
struct Encoded {
    std::vector<std::int32_t> ids;
    std::vector<std::int32_t> lengths;
};

class AskedWords {
public:
    // Gives the token ids of each text.
    using Fallback = std::function<std::vector<std::vector<std::int32_t>>(const std::vector<std::string>&)>;

    explicit AskedWords(Fallback fallback) : fallback_(std::move(fallback)) {}

    // Encodes texts: one(text, ids) appends the ids of a text, by append() and ask().
    template <typename One>
    Encoded encode(const std::vector<std::string_view>& texts, One one) {
        forget_if_full();
        Encoded encoded;
        encoded.lengths.reserve(texts.size());
        for (const std::string_view text : texts) {
            const std::size_t before = encoded.ids.size();
            one(text, encoded.ids);
            encoded.lengths.push_back(static_cast<std::int32_t>(encoded.ids.size() - before));
        }
        if (!missing_.empty()) {
            expand(encoded, resolve());
        }
        return encoded;
    }

    const WordTable::Ids* find(std::string_view word) { return known_.find(word); }

    // Appends the ids of a word; where they are not known yet, a negative number in their place.
    void append(WordTable::Ids ids, std::vector<std::int32_t>& out) const;

    // Appends the ids of `word`, which is asked for at the end of encode() unless it is known.
    void ask(std::string_view word, std::vector<std::int32_t>& out);

    // Remembers the ids of a word that is not known.
    WordTable::Ids remember(std::string_view word, const std::vector<std::int32_t>& ids);

private:
    void forget_if_full();
    std::vector<WordTable::Ids> resolve();
    void expand(Encoded& encoded, const std::vector<WordTable::Ids>& resolved) const;

    WordTable known_;
    Fallback fallback_;
    std::vector<std::string> missing_;  // in the order in which they were met
};

}  // namespace recipe_index
