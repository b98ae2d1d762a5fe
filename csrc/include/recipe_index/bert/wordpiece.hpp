// BERT's tokenizer: words and punctuation, then the longest pieces of the vocabulary. ASCII text is done here; what is
// not ASCII is asked of another tokenizer, piece by piece, and remembered.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "recipe_index/text/asked_words.hpp"
#include "recipe_index/text/word_table.hpp"

namespace recipe_index {

class WordPiece {
public:
    // `special`: texts that stand for one token wherever they appear, each of which starts with '['.
    WordPiece(const std::vector<std::string>& pieces, const std::vector<std::int32_t>& ids, bool lowercase,
              std::int32_t unknown, std::vector<std::string> special, AskedWords::Fallback fallback);

    Encoded encode(const std::vector<std::string_view>& texts);

private:
    void encode_one(std::string_view text, std::vector<std::int32_t>& out);
    void ascii_word(std::string_view raw, std::vector<std::int32_t>& out);
    WordTable::Ids longest_pieces(std::string_view word);
    bool special_at(std::string_view rest) const;

    WordTable vocabulary_;
    AskedWords known_;
    std::size_t longest_ = 0;  // bytes of the longest piece
    bool lowercase_;
    std::int32_t unknown_;
    std::int32_t punctuation_[128];
    std::vector<std::string> special_;
    std::string word_;
};

}  // namespace recipe_index
