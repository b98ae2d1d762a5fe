#include "recipe_index/bert/packing.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "recipe_index/bert/cutting_stock.hpp"
#include "recipe_index/random/keyed_random.hpp"

namespace recipe_index {
namespace {

constexpr double kGoodEnough = 0.9995;  // share of the rows' capacity that is filled
constexpr double kAlmost = 1e-6;  // what the linear program's rounding errors may amount to

using Counts = std::vector<std::int64_t>;

// How many more rows the pattern can fill with what is left, at most `wanted`; takes them off.
std::int64_t take(const std::vector<std::int32_t>& items, std::int64_t wanted, Counts& left) {
    for (const std::int32_t item : items) {
        const auto times = std::count(items.begin(), items.end(), item);
        wanted = std::min(wanted, left[static_cast<std::size_t>(item)] / times);
    }
    for (const std::int32_t item : items) {
        left[static_cast<std::size_t>(item)] -= wanted;
    }
    return wanted;
}

// Best fit, decreasing: a row starts with the longest that is left and takes the next longest that fits, but fills its
// last two places by the pair that leaves least free.
class BestFit {
public:
    BestFit(const std::vector<std::int32_t>& lengths, std::int64_t capacity, std::int64_t most, Counts& left)
        : lengths_(lengths), most_(most), left_(left), fitting_(static_cast<std::size_t>(capacity) + 1) {}

    void fill(std::int64_t capacity, std::vector<Pattern>& out) {
        for (std::int32_t first = fit(capacity); first >= 0; first = fit(capacity)) {
            std::vector<std::int32_t> items{first};
            std::int64_t room = capacity - use(first);
            while (static_cast<std::int64_t>(items.size()) < most_) {
                const std::int32_t next =
                    static_cast<std::int64_t>(items.size()) + 2 == most_ ? of_best_pair(room) : fit(room);
                if (next < 0) {
                    break;
                }
                items.push_back(next);
                room -= use(next);
            }
            // As long as there is enough of all of them, the next row would be the same.
            const std::int64_t more = take(items, std::numeric_limits<std::int64_t>::max(), left_);
            out.push_back({std::move(items), 1 + more});
        }
    }

private:
    // The longest that is left and fits; -1 where none does.
    std::int32_t fit(std::int64_t room) const {
        std::int32_t found = -1;
        for (std::size_t i = 0; i < lengths_.size() && lengths_[i] <= room; ++i) {
            found = left_[i] > 0 ? static_cast<std::int32_t>(i) : found;
        }
        return found;
    }

    std::int64_t use(std::int32_t item) {
        --left_[static_cast<std::size_t>(item)];
        return lengths_[static_cast<std::size_t>(item)];
    }

    // The longer of the two that together leave least of `room`; of several such pairs, that of the longest.
    std::int32_t of_best_pair(std::int64_t room) {
        std::fill(fitting_.begin(), fitting_.end(), -1);
        for (std::size_t i = 0; i < lengths_.size(); ++i) {
            if (left_[i] > 0) {
                fitting_[static_cast<std::size_t>(lengths_[i])] = static_cast<std::int32_t>(i);
            }
        }
        for (std::size_t c = 1; c < fitting_.size(); ++c) {
            fitting_[c] = fitting_[c] < 0 ? fitting_[c - 1] : fitting_[c];
        }
        std::int32_t found = -1;
        std::int64_t fullest = 0;
        for (std::size_t i = lengths_.size(); i-- > 0;) {
            if (left_[i] == 0 || lengths_[i] > room) {
                continue;
            }
            --left_[i];  // the other may be as long only if there are two
            std::int32_t other = fitting_[static_cast<std::size_t>(room - lengths_[i])];
            while (other >= 0 && left_[static_cast<std::size_t>(other)] == 0) {
                --other;
            }
            ++left_[i];
            const std::int64_t filled = lengths_[i] + (other < 0 ? 0 : lengths_[static_cast<std::size_t>(other)]);
            if (filled > fullest) {
                fullest = filled;
                found = static_cast<std::int32_t>(i);
            }
        }
        return found;
    }

    const std::vector<std::int32_t>& lengths_;
    const std::int64_t most_;
    Counts& left_;
    std::vector<std::int32_t> fitting_;  // the longest that is left and has at most so many tokens
};

std::vector<Pattern> best_fit(const std::vector<std::int32_t>& lengths, Counts left, std::int64_t capacity,
                              std::int64_t most) {
    std::vector<Pattern> out;
    BestFit(lengths, capacity, most, left).fill(capacity, out);
    return out;
}

// The patterns of the linear program in whole rows, and best fit for what is left then.
std::vector<Pattern> rounded(const std::vector<std::int32_t>& lengths, Counts left, std::int64_t capacity,
                             std::int64_t most) {
    const std::vector<Use> uses = fractional_patterns(lengths, left, capacity, most);
    std::vector<Pattern> out;
    for (const Use& use : uses) {
        const auto whole = static_cast<std::int64_t>(std::floor(use.rows + kAlmost));
        out.push_back({use.items, take(use.items, whole, left)});
    }
    // Once more those that were rounded down most, as long as there is enough for them.
    std::vector<std::size_t> order(uses.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::vector<double> lost;
    for (std::size_t i = 0; i < uses.size(); ++i) {
        lost.push_back(uses[i].rows - static_cast<double>(out[i].rows));
    }
    std::stable_sort(order.begin(), order.end(), [&](std::size_t i, std::size_t j) { return lost[i] > lost[j]; });
    for (const std::size_t i : order) {
        if (lost[i] > kAlmost) {
            out[i].rows += take(uses[i].items, 1, left);
        }
    }
    BestFit(lengths, capacity, most, left).fill(capacity, out);
    return out;
}

std::int64_t rows_of(const std::vector<Pattern>& patterns) {
    return std::accumulate(patterns.begin(), patterns.end(), std::int64_t{0},
                           [](std::int64_t sum, const Pattern& pattern) { return sum + pattern.rows; });
}

}  // namespace

std::vector<Pattern> packing_patterns(const std::vector<std::int32_t>& lengths, const std::vector<std::int64_t>& counts,
                                      std::int64_t capacity, std::int64_t most) {
    std::vector<Pattern> simple = best_fit(lengths, counts, capacity, most);
    std::int64_t tokens = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        tokens += lengths[i] * counts[i];
    }
    if (static_cast<double>(rows_of(simple) * capacity) * kGoodEnough <= static_cast<double>(tokens)) {
        return simple;  // mostly so where as many fit as may be
    }
    std::vector<Pattern> solved = rounded(lengths, counts, capacity, most);
    return rows_of(solved) < rows_of(simple) ? solved : simple;
}

Packed pack(Span<std::int32_t> lengths, std::int64_t capacity, std::int64_t most, std::uint64_t key) {
    Counts histogram(static_cast<std::size_t>(capacity) + 1);
    for (std::int64_t i = 0; i < lengths.size(); ++i) {
        const std::int32_t length = lengths[i];
        if (length < 1 || length > capacity) {
            throw std::invalid_argument("lengths: expected from 1 to " + std::to_string(capacity) + ", got " +
                                        std::to_string(length) + " at index " + std::to_string(i));
        }
        ++histogram[static_cast<std::size_t>(length)];
    }
    std::vector<std::int32_t> present;
    Counts counts, place(histogram.size());
    for (std::size_t length = 1, before = 0; length < histogram.size(); ++length) {
        place[length] = static_cast<std::int64_t>(before);
        before += static_cast<std::size_t>(histogram[length]);
        if (histogram[length] > 0) {
            present.push_back(static_cast<std::int32_t>(length));
            counts.push_back(histogram[length]);
        }
    }
    Packed packed{{}, {0}};
    if (present.empty()) {
        return packed;
    }
    std::vector<std::int64_t> by_length(static_cast<std::size_t>(lengths.size()));
    std::vector<std::int64_t> next = place;
    for (std::int64_t i = 0; i < lengths.size(); ++i) {
        by_length[static_cast<std::size_t>(next[static_cast<std::size_t>(lengths[i])]++)] = i;
    }
    const std::vector<Pattern> patterns = packing_patterns(present, counts, capacity, most);
    std::vector<std::uint32_t> rows;  // the pattern of each row
    for (std::size_t i = 0; i < patterns.size(); ++i) {
        rows.insert(rows.end(), static_cast<std::size_t>(patterns[i].rows), static_cast<std::uint32_t>(i));
    }
    KeyedRandom random(key);
    for (std::size_t i = rows.size(); i > 1; --i) {  // Fisher and Yates, Durstenfeld's way
        std::swap(rows[i - 1], rows[random.below(static_cast<std::uint32_t>(i))]);
    }
    packed.order.reserve(by_length.size());
    packed.rows.reserve(rows.size() + 1);
    for (const std::uint32_t pattern : rows) {
        for (const std::int32_t item : patterns[pattern].items) {
            const auto length = static_cast<std::size_t>(present[static_cast<std::size_t>(item)]);
            packed.order.push_back(by_length[static_cast<std::size_t>(place[length]++)]);
        }
        packed.rows.push_back(static_cast<std::int64_t>(packed.order.size()));
    }
    return packed;
}

}  // namespace recipe_index
