#include "recipe_index/tokens/blend.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace recipe_index {
namespace {

std::vector<double> checked(Span<double> weights) {
    std::vector<double> copy;
    for (std::int64_t i = 0; i < weights.size(); ++i) {
        copy.push_back(weights[i]);
        if (!(copy.back() >= 0) || !std::isfinite(copy.back())) {
            throw std::invalid_argument("weights: expected finite numbers that are not negative; the one at index " +
                                        std::to_string(i) + " is not");
        }
    }
    if (std::none_of(copy.begin(), copy.end(), [](double weight) { return weight > 0; })) {
        throw std::invalid_argument("weights: expected at least one above 0");
    }
    return copy;
}

}  // namespace

void blending_index(Span<double> weights, std::int64_t samples, std::int16_t* datasets, std::int64_t* numbers) {
    const std::vector<double> shares = checked(weights);
    std::vector<double> taken(shares.size(), 0.0);  // whole numbers below 2^53, exact, and cheap to subtract
    for (std::int64_t sample = 0; sample < samples; ++sample) {
        const double due = std::max(static_cast<double>(sample), 1.0);
        std::size_t chosen = 0;
        double most = shares[0] * due - taken[0];
        for (std::size_t i = 1; i < shares.size(); ++i) {
            const double behind = shares[i] * due - taken[i];
            if (behind > most) {
                most = behind;
                chosen = i;
            }
        }
        datasets[sample] = static_cast<std::int16_t>(chosen);
        numbers[sample] = static_cast<std::int64_t>(taken[chosen]);
        taken[chosen] += 1;
    }
}

}  // namespace recipe_index
