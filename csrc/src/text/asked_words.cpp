#include "recipe_index/text/asked_words.hpp"

#include <stdexcept>
#include <utility>

namespace recipe_index {
namespace {

constexpr std::size_t kMostWords = 1 << 20;
constexpr std::size_t kMostBytes = 64 << 20;   // what is remembered starts anew beyond either
constexpr std::size_t kLongestWord = 1 << 10;  // bytes; a text without spaces is one long word that never returns

}  // namespace

void AskedWords::append(WordTable::Ids ids, std::vector<std::int32_t>& out) const {
    if (ids.count < 0) {
        out.push_back(ids.count);
    } else {
        out.insert(out.end(), known_.data(ids), known_.data(ids) + ids.count);
    }
}

void AskedWords::ask(std::string_view word, std::vector<std::int32_t>& out) {
    const WordTable::Ids* known = known_.find(word);
    if (known != nullptr) {
        append(*known, out);
        return;
    }
    missing_.emplace_back(word);
    const WordTable::Ids place{0, -static_cast<std::int32_t>(missing_.size())};
    if (word.size() <= kLongestWord) {
        known_.insert(word, place);
    }
    append(place, out);
}

WordTable::Ids AskedWords::remember(std::string_view word, const std::vector<std::int32_t>& ids) {
    const WordTable::Ids kept = known_.keep(ids.data(), ids.size());
    known_.insert(word, kept);
    return kept;
}

void AskedWords::forget_if_full() {
    if (known_.words() > kMostWords || known_.bytes() > kMostBytes) {
        known_.clear();
    }
}

std::vector<WordTable::Ids> AskedWords::resolve() {
    const std::vector<std::string> texts = std::exchange(missing_, {});
    std::vector<std::vector<std::int32_t>> found;
    try {
        found = fallback_(texts);
        if (found.size() != texts.size()) {
            throw std::invalid_argument("fallback: expected ids for " + std::to_string(texts.size()) +
                                        " texts, got " + std::to_string(found.size()));
        }
    } catch (...) {
        known_.clear();  // it would hold words without ids
        throw;
    }
    std::vector<WordTable::Ids> kept;
    kept.reserve(texts.size());
    for (std::size_t i = 0; i < texts.size(); ++i) {
        kept.push_back(known_.keep(found[i].data(), found[i].size()));
        if (WordTable::Ids* const place = known_.find(texts[i]); place != nullptr) {
            *place = kept.back();
        }
    }
    return kept;
}

// Replaces the negative numbers that append() left.
void AskedWords::expand(Encoded& encoded, const std::vector<WordTable::Ids>& resolved) const {
    std::vector<std::int32_t> ids;
    ids.reserve(encoded.ids.size() + 4 * resolved.size());
    std::size_t at = 0;
    for (std::int32_t& length : encoded.lengths) {
        const std::size_t before = ids.size();
        for (const std::size_t end = at + static_cast<std::size_t>(length); at < end; ++at) {
            if (const std::int32_t id = encoded.ids[at]; id < 0) {
                append(resolved[static_cast<std::size_t>(-(id + 1))], ids);
            } else {
                ids.push_back(id);
            }
        }
        length = static_cast<std::int32_t>(ids.size() - before);
    }
    encoded.ids.swap(ids);
}

}  // namespace recipe_index
