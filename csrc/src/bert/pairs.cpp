#include "recipe_index/bert/pairs.hpp"

#include <stdexcept>
#include <string>

#include "recipe_index/random/keyed_random.hpp"

namespace recipe_index {
namespace {

constexpr std::int64_t kSpecial = 3;  // [CLS] and twice [SEP]

struct Segment {
    std::int64_t start, length;
};

// The sentences of a document: from `first` to below `last`.
struct Sentences {
    std::int64_t first, last;
};

[[noreturn]] void refuse(const char* name, const char* what, std::int64_t index) {
    throw std::invalid_argument(std::string(name) + ": expected " + what + " at index " + std::to_string(index));
}

std::uint32_t below(KeyedRandom& random, std::int64_t end) { return random.below(static_cast<std::uint32_t>(end)); }

// Drops tokens of the longer segment, at its start or its end as a coin decides, until both fit together.
void truncate(Segment& a, Segment& b, std::int64_t most, KeyedRandom& random) {
    std::uint64_t coins = 0;
    for (int left = 0; a.length + b.length > most; --left, coins >>= 1) {
        if (left == 0) {
            coins = random.next();
            left = 64;
        }
        Segment& longer = a.length > b.length ? a : b;
        longer.start += static_cast<std::int64_t>(coins & 1);
        --longer.length;
    }
}

class Builder {
public:
    Builder(const Documents& documents, std::int64_t sequence, double short_probability, std::vector<Pair>& out)
        : documents_(documents), most_(sequence - kSpecial), short_probability_(short_probability), out_(out) {}

    // The published algorithm (Devlin et al., create_pretraining_data.py): whole sentences are gathered up to a target
    // length; a part of them is a, and the rest is b or is kept for the next pair.
    void document(std::int64_t place, std::uint64_t key) {
        KeyedRandom random(key);
        std::int64_t target = most_;
        if (random.chance(short_probability_)) {
            target = 2 + below(random, most_ - 1);
        }
        const std::int64_t end = sentences(place).last;
        std::int64_t first = sentences(place).first;
        for (std::int64_t next = first + 1; next <= end; ++next) {
            if (next < end && tokens(first, next).length < target) {
                continue;
            }
            const std::int64_t sentences = next - first;
            const std::int64_t middle = first + (sentences < 2 ? 1 : 1 + below(random, sentences - 1));
            Segment a = tokens(first, middle);
            const bool random_next = sentences < 2 || random.chance(0.5);
            Segment b = random_next ? elsewhere(place, target - a.length, random) : tokens(middle, next);
            truncate(a, b, most_, random);
            out_.push_back({a.start, b.start, random.next(), static_cast<std::uint16_t>(a.length),
                            static_cast<std::uint16_t>(b.length), random_next, sentences < 2, 0});
            first = random_next ? middle : next;
            next = first;
        }
    }

private:
    Sentences sentences(std::int64_t place) const {
        const std::int64_t document = documents_.pool[place];
        if (document < 0 || document >= documents_.starts.size() - 1) {
            refuse("pool", "a document", place);
        }
        const Sentences found{documents_.starts[document], documents_.starts[document + 1]};
        if (found.first < 0 || found.last <= found.first || found.last >= documents_.sentences.size()) {
            refuse("documents", "rising indices of sentences", document);
        }
        return found;
    }

    // Of sentences of one document.
    Segment tokens(std::int64_t first, std::int64_t last) const {
        const std::int64_t start = documents_.sentences[first], end = documents_.sentences[last];
        if (start < 0 || end <= start) {
            refuse("sentences", "rising indices of tokens", first);
        }
        return {start, end - start};
    }

    // Sentences of another document, from a random one on, until they have the target length.
    Segment elsewhere(std::int64_t place, std::int64_t target, KeyedRandom& random) const {
        const std::int64_t other = below(random, documents_.pool.size() - 1);
        const Sentences among = sentences(other + (other >= place));
        const std::int64_t first = among.first + below(random, among.last - among.first);
        std::int64_t last = first + 1;
        while (last < among.last && tokens(first, last).length < target) {
            ++last;
        }
        return tokens(first, last);
    }

    const Documents& documents_;
    const std::int64_t most_;
    const double short_probability_;
    std::vector<Pair>& out_;
};

}  // namespace

void make_pairs(const Documents& documents, std::int64_t first, std::int64_t last, std::int64_t sequence,
                double short_probability, std::uint64_t key, std::vector<Pair>& out) {
    Builder builder(documents, sequence, short_probability, out);
    for (std::int64_t place = first; place < last; ++place) {
        builder.document(place, key_of(key, static_cast<std::uint64_t>(documents.pool[place])));
    }
}

}  // namespace recipe_index
