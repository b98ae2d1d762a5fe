#include "recipe_index/bert/wordpiece.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace recipe_index {
namespace {

constexpr std::size_t kLongestWord = 100;  // characters; a longer word is unknown, as in the published tokenizer

enum Class : unsigned char { kLetter, kSpace, kControl, kPunctuation, kOther };

// What the published tokenizer does with each byte of ASCII: it parts words at white space, drops control characters
// (the vertical tab and the form feed are such) and makes every punctuation character a word of its own.
constexpr std::array<Class, 256> classes() {
    std::array<Class, 256> found{};
    for (unsigned byte = 0; byte < 256; ++byte) {
        if (byte >= 0x80) {
            found[byte] = kOther;
        } else if (byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r') {
            found[byte] = kSpace;
        } else if (byte < 0x20 || byte == 0x7F) {
            found[byte] = kControl;
        } else if ((byte >= 33 && byte <= 47) || (byte >= 58 && byte <= 64) || (byte >= 91 && byte <= 96) ||
                   (byte >= 123 && byte <= 126)) {
            found[byte] = kPunctuation;
        } else {
            found[byte] = kLetter;
        }
    }
    return found;
}

constexpr std::array<Class, 256> kClasses = classes();

Class class_of(char byte) { return kClasses[static_cast<unsigned char>(byte)]; }

}  // namespace

WordPiece::WordPiece(const std::vector<std::string>& pieces, const std::vector<std::int32_t>& ids, bool lowercase,
                     std::int32_t unknown, std::vector<std::string> special, AskedWords::Fallback fallback)
    : known_(std::move(fallback)), lowercase_(lowercase), unknown_(unknown), special_(std::move(special)) {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        if (vocabulary_.find(pieces[i]) == nullptr) {
            vocabulary_.insert(pieces[i], vocabulary_.keep(&ids[i], 1));
            longest_ = std::max(longest_, pieces[i].size());
        }
    }
    for (unsigned byte = 0; byte < 128; ++byte) {
        const char character = static_cast<char>(byte);
        const WordTable::Ids* found = vocabulary_.find(std::string_view(&character, 1));
        punctuation_[byte] = found == nullptr ? unknown_ : *vocabulary_.data(*found);
    }
}

Encoded WordPiece::encode(const std::vector<std::string_view>& texts) {
    return known_.encode(
        texts, [this](std::string_view text, std::vector<std::int32_t>& ids) { encode_one(text, ids); });
}

void WordPiece::encode_one(std::string_view text, std::vector<std::int32_t>& out) {
    const std::size_t before = out.size();
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t start = at;
        bool ascii = true;
        Class found = kSpace;
        for (; at < text.size(); ++at) {
            found = class_of(text[at]);
            if (found == kSpace || found == kPunctuation) {
                break;
            }
            ascii = ascii && found != kOther;
        }
        if (at > start) {
            const std::string_view raw = text.substr(start, at - start);
            ascii ? ascii_word(raw, out) : known_.ask(raw, out);
        }
        if (at < text.size() && found == kPunctuation) {
            if (text[at] == '[' && special_at(text.substr(at))) {
                out.resize(before);  // the other tokenizer knows how to part a text at such tokens
                known_.ask(text, out);
                return;
            }
            out.push_back(punctuation_[static_cast<unsigned char>(text[at])]);
        }
        ++at;
    }
}

void WordPiece::ascii_word(std::string_view raw, std::vector<std::int32_t>& out) {
    word_.resize(raw.size());
    std::size_t size = 0;
    for (const char byte : raw) {
        if (class_of(byte) != kControl) {
            word_[size++] = lowercase_ && byte >= 'A' && byte <= 'Z' ? static_cast<char>(byte + ('a' - 'A')) : byte;
        }
    }
    if (size == 0) {
        return;
    }
    if (size > kLongestWord) {
        out.push_back(unknown_);
        return;
    }
    const std::string_view word(word_.data(), size);
    const WordTable::Ids* known = known_.find(word);
    known_.append(known != nullptr ? *known : longest_pieces(word), out);
}

// The longest piece that the word starts with, then the longest that continues it, and so on; or the unknown token.
WordTable::Ids WordPiece::longest_pieces(std::string_view word) {
    std::string marked = "##" + std::string(word);
    std::vector<std::int32_t> ids;
    for (std::size_t start = 0; start < word.size();) {
        // From the second piece on, the mark overwrites what is done, so that it stands right before the rest.
        const std::size_t mark = start == 0 ? 0 : 2;
        const std::size_t from = start + 2 - mark;
        if (mark != 0) {
            marked[from] = marked[from + 1] = '#';
        }
        std::size_t size = std::min(word.size() - start, longest_ > mark ? longest_ - mark : 0);
        const WordTable::Ids* piece = nullptr;
        for (; size > 0; --size) {
            piece = vocabulary_.find(std::string_view(marked).substr(from, mark + size));
            if (piece != nullptr) {
                break;
            }
        }
        if (piece == nullptr) {
            ids.assign(1, unknown_);
            break;
        }
        ids.push_back(*vocabulary_.data(*piece));
        start += size;
    }
    return known_.remember(word, ids);
}

bool WordPiece::special_at(std::string_view rest) const {
    for (const std::string& token : special_) {
        if (rest.substr(0, token.size()) == token) {
            return true;
        }
    }
    return false;
}

}  // namespace recipe_index
