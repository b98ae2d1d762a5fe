#include "recipe_index/pairs.hpp"

#include <stdexcept>
#include <string>

#include "recipe_index/keyed_random.hpp"

namespace recipe_index {
namespace {

constexpr std::int64_t kSpecial = 3;  // [CLS] and twice [SEP]

struct Segment {
    std::int64_t start, length;
};

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
        const std::int64_t document = documents_.pool[place];
        const std::int64_t end = documents_.starts[document + 1];
        std::int64_t first = documents_.starts[document];
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
    Segment tokens(std::int64_t first, std::int64_t last) const {
        const std::int64_t start = documents_.sentences[first];
        return {start, documents_.sentences[last] - start};
    }

    // Sentences of another document, from a random one on, until they have the target length.
    Segment elsewhere(std::int64_t place, std::int64_t target, KeyedRandom& random) const {
        std::int64_t other = below(random, documents_.pool.size() - 1);
        other = documents_.pool[other + (other >= place)];
        const std::int64_t start = documents_.starts[other], end = documents_.starts[other + 1];
        const std::int64_t first = start + below(random, end - start);
        std::int64_t last = first + 1;
        while (last < end && tokens(first, last).length < target) {
            ++last;
        }
        return tokens(first, last);
    }

    const Documents& documents_;
    const std::int64_t most_;
    const double short_probability_;
    std::vector<Pair>& out_;
};

[[noreturn]] void refuse(const char* name, const char* what, std::int64_t index) {
    throw std::invalid_argument(std::string(name) + ": " + what + " at index " + std::to_string(index));
}

}  // namespace

void check_documents(const Documents& documents) {
    const Span<std::int64_t>&sentences = documents.sentences, &starts = documents.starts, &pool = documents.pool;
    for (std::int64_t i = 1; i < sentences.size(); ++i) {
        if (sentences[i] <= sentences[i - 1]) {
            refuse("sentences", "expected rising starts, found none that is larger", i);
        }
    }
    for (std::int64_t i = 0; i < starts.size(); ++i) {
        if (starts[i] < 0 || starts[i] >= sentences.size() || (i > 0 && starts[i] <= starts[i - 1])) {
            refuse("documents", "expected rising indices of sentences, found another", i);
        }
    }
    for (std::int64_t i = 0; i < pool.size(); ++i) {
        if (pool[i] < 0 || pool[i] >= starts.size() - 1) {
            refuse("pool", "expected the index of a document, found another", i);
        }
    }
}

void make_pairs(const Documents& documents, std::int64_t first, std::int64_t last, std::int64_t sequence,
                double short_probability, std::uint64_t key, std::vector<Pair>& out) {
    Builder builder(documents, sequence, short_probability, out);
    for (std::int64_t place = first; place < last; ++place) {
        builder.document(place, key_of(key, static_cast<std::uint64_t>(documents.pool[place])));
    }
}

}  // namespace recipe_index
