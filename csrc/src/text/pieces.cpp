#include "recipe_index/text/pieces.hpp"

#include <array>
#include <cstddef>

namespace recipe_index {
namespace {

enum Class : unsigned char { kOther, kAlphanumeric, kStop, kSpace };

constexpr std::array<Class, 256> classes() {
    std::array<Class, 256> found{};
    for (unsigned byte = 0; byte < 256; ++byte) {
        const bool letter = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
        found[byte] = letter || (byte >= '0' && byte <= '9') ? kAlphanumeric : kOther;
    }
    for (const char stop : {'\n', ',', '.', ';', ':', '!', '?', ')', '(', '"', '-'}) {
        found[static_cast<unsigned char>(stop)] = kStop;
    }
    found[static_cast<unsigned char>(' ')] = kSpace;
    return found;
}

constexpr std::array<Class, 256> kClasses = classes();

unsigned char byte_at(std::string_view text, std::size_t at) { return static_cast<unsigned char>(text[at]); }

// White space as Unicode has it, and with it Python: the characters that start at `at`, which is inside of the text.
bool white_at(std::string_view text, std::size_t at) {
    const unsigned char first = byte_at(text, at);
    if (first < 0x80) {
        return first == ' ' || (first >= 0x09 && first <= 0x0D) || (first >= 0x1C && first <= 0x1F);
    }
    if (first == 0xC2 && at + 1 < text.size()) {
        return byte_at(text, at + 1) == 0x85 || byte_at(text, at + 1) == 0xA0;
    }
    if (first < 0xE1 || first > 0xE3 || at + 2 >= text.size()) {
        return false;
    }
    const unsigned second = byte_at(text, at + 1), third = byte_at(text, at + 2);
    switch (first << 8 | second) {
        case 0xE19A:  // U+1680
        case 0xE380:  // U+3000
            return third == 0x80;
        case 0xE280:  // U+2000 to U+200A, U+2028, U+2029, U+202F
            return third <= 0x8A || third == 0xA8 || third == 0xA9 || third == 0xAF;
        case 0xE281:  // U+205F
            return third == 0x9F;
        default:
            return false;
    }
}

// The same for the character that ends before `at`, which is not the start of the text.
bool white_before(std::string_view text, std::size_t at) {
    std::size_t start = at - 1;
    while (start > 0 && (byte_at(text, start) & 0xC0) == 0x80) {
        --start;
    }
    return white_at(text, start);
}

bool cut_before(std::string_view text, std::size_t at) {
    switch (kClasses[byte_at(text, at)]) {
        case kStop:
            return kClasses[byte_at(text, at - 1)] == kAlphanumeric;
        case kSpace:
            return !white_before(text, at) || (at + 1 < text.size() && !white_at(text, at + 1));
        default:
            return false;
    }
}

}  // namespace

Encoded Pieces::encode(const std::vector<std::string_view>& texts) {
    return known_.encode(texts, [this](std::string_view text, std::vector<std::int32_t>& ids) {
        for (std::size_t start = 0, at = 1; start < text.size(); ++at) {
            if (at == text.size() || cut_before(text, at)) {
                known_.ask(text.substr(start, at - start), ids);
                start = at;
            }
        }
    });
}

}  // namespace recipe_index
