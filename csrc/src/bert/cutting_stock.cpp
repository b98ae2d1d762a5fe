#include "recipe_index/bert/cutting_stock.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "knapsack.hpp"

namespace recipe_index {
namespace {

constexpr double kGain = 1e-4;   // a pattern whose lengths are worth less than so much above a row changes nothing
constexpr double kPivot = 1e-9;  // smaller numbers are rounding errors
constexpr double kFull = 0.9998;  // share of the capacity at which there is nothing left to gain
constexpr double kSmooth = 0.95;  // how near, to begin with
constexpr std::size_t kRounds = 12; // at most so many pivots per length; what is found by then holds all sequences
constexpr std::size_t kLook = 16;   // rounds after which the rows are counted

// The simplex method in its revised form: a basis of as many patterns as there are lengths, the inverse of its matrix
// by columns, how often each pattern is used, and the price of each length.
class Simplex {
public:
    Simplex(const std::vector<std::int32_t>& lengths, const std::vector<std::int64_t>& counts, std::int64_t capacity,
            std::int64_t most)
        : size_(lengths.size()), inverse_(size_ * size_), entering_(size_), prices_(size_), uses_(size_) {
        for (std::size_t i = 0; i < size_; ++i) {  // to begin with, a row holds one length as often as it can
            const std::int64_t times = std::min(most, capacity / lengths[i]);
            const auto share = 1.0 / static_cast<double>(times);
            uses_[i].items.assign(static_cast<std::size_t>(times), static_cast<std::int32_t>(i));
            uses_[i].rows = static_cast<double>(counts[i]) * share;
            inverse_[i * size_ + i] = prices_[i] = share;
        }
    }

    const std::vector<double>& prices() const { return prices_; }

    double value(const std::vector<std::int32_t>& items) const {
        double sum = 0;
        for (const std::int32_t item : items) {
            sum += prices_[static_cast<std::size_t>(item)];
        }
        return sum;
    }

    double rows() const {
        double sum = 0;
        for (const Use& use : uses_) {
            sum += use.rows;
        }
        return sum;
    }

    std::vector<Use> uses() { return std::move(uses_); }

    // Brings a pattern of this value, which must be above 1, into the basis.
    void enter(std::vector<std::int32_t>& items, double value) {
        std::fill(entering_.begin(), entering_.end(), 0.0);
        for (const std::int32_t item : items) {
            const double* const column = &inverse_[static_cast<std::size_t>(item) * size_];
            for (std::size_t i = 0; i < size_; ++i) {
                entering_[i] += column[i];
            }
        }
        const std::size_t leaving = leaving_row();
        const double pivot = entering_[leaving];
        const double rows = uses_[leaving].rows / pivot;
        for (std::size_t i = 0; i < size_; ++i) {
            uses_[i].rows = std::max(0.0, uses_[i].rows - rows * entering_[i]);
        }
        uses_[leaving].rows = rows;
        uses_[leaving].items.swap(items);
        update(leaving, pivot, value);
    }

private:
    // The pattern that is used up first when the entering one takes over; the first of several. The entering pattern
    // holds some length, so that there is one.
    std::size_t leaving_row() const {
        std::size_t found = size_;
        double least = 0;
        for (std::size_t i = 0; i < size_; ++i) {
            if (entering_[i] > kPivot) {
                const double rows = uses_[i].rows / entering_[i];
                if (found == size_ || rows < least) {
                    found = i;
                    least = rows;
                }
            }
        }
        return found;
    }

    void update(std::size_t leaving, double pivot, double value) {
        for (std::size_t j = 0; j < size_; ++j) {
            double* const column = &inverse_[j * size_];
            if (column[leaving] == 0.0) {
                continue;
            }
            const double share = column[leaving] / pivot;
            for (std::size_t i = 0; i < size_; ++i) {
                column[i] -= share * entering_[i];
            }
            column[leaving] = share;
            prices_[j] += (1.0 - value) * share;
        }
    }

    const std::size_t size_;
    std::vector<double> inverse_;
    std::vector<double> entering_;
    std::vector<double> prices_;
    std::vector<Use> uses_;
};

// Finds patterns that are worth more than a row. The prices of a basis jump from one round to the next, and patterns
// that are best for them are seldom of use for long. So the best is looked for at prices near to what they will be in
// the end if all rows can be filled, each length's share of a row; and only if that finds none nearer to today's
// (smoothing, Wentges 1997).
class Pricing {
public:
    Pricing(const std::vector<std::int32_t>& lengths, std::int64_t capacity, std::int64_t most)
        : knapsack_(lengths, capacity, most), smooth_(lengths.size()) {
        for (const std::int32_t length : lengths) {
            shares_.push_back(static_cast<double>(length) / static_cast<double>(capacity));
        }
    }

    // Puts a pattern into `items` and returns its value at the simplex' own prices: the best where that is at most 1.
    double find(const Simplex& simplex, std::vector<std::int32_t>& items) {
        for (double weight = kSmooth, step = 1 - kSmooth;; weight = std::max(0.0, weight - step), step *= 2) {
            for (std::size_t i = 0; i < smooth_.size(); ++i) {
                smooth_[i] = weight * shares_[i] + (1 - weight) * simplex.prices()[i];
            }
            items.clear();
            knapsack_.solve(smooth_, items);
            const double value = simplex.value(items);
            if (value > 1 + kGain || weight == 0) {
                return value;
            }
        }
    }

private:
    Knapsack knapsack_;
    std::vector<double> shares_, smooth_;
};

}  // namespace

std::vector<Use> fractional_patterns(const std::vector<std::int32_t>& lengths, const std::vector<std::int64_t>& counts,
                                     std::int64_t capacity, std::int64_t most) {
    Simplex simplex(lengths, counts, capacity, most);
    Pricing pricing(lengths, capacity, most);
    double tokens = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        tokens += static_cast<double>(lengths[i]) * static_cast<double>(counts[i]);
    }
    const double enough = tokens / (kFull * static_cast<double>(capacity));
    std::vector<std::int32_t> items;
    for (std::size_t round = 0; round < kRounds * lengths.size(); ++round) {
        if (round % kLook == 0 && simplex.rows() <= enough) {
            break;
        }
        const double value = pricing.find(simplex, items);
        if (value <= 1 + kGain) {
            break;  // by Farley's bound, the fewest rows are at least the rows in use divided by this value
        }
        simplex.enter(items, value);
    }
    return simplex.uses();
}

}  // namespace recipe_index
