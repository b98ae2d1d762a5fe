// Tokenizers that part a text into words first, as GPT's do: the text is cut where no word of theirs lies across, and
// each piece is asked of the tokenizer once. A text is mostly pieces that were met before.
#pragma once

#include <string_view>
#include <vector>

#include "recipe_index/text/asked_words.hpp"

namespace recipe_index {

class Pieces {
public:
    explicit Pieces(AskedWords::Fallback fallback) : known_(std::move(fallback)) {}

    // The cuts lie
    // - before a space with a character other than white space on either side of it: a tokenizer of this kind takes a
    //   space only as the first character of a word, or in a run of white space, from which it leaves the last space to
    //   the word after it;
    // - between an ASCII letter or digit and a line end or one of , . ; : ! ? ) ( " -: no word goes on with these.
    Encoded encode(const std::vector<std::string_view>& texts);

private:
    AskedWords known_;
};

}  // namespace recipe_index
