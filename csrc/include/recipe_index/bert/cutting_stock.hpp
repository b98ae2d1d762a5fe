// The cutting-stock problem as a linear program: how often to use each pattern of lengths, in fractions of a row.
#pragma once

#include <cstdint>
#include <vector>

namespace recipe_index {

// A pattern and how often it is used.
struct Use {
    std::vector<std::int32_t> items;  // places in the list of lengths, falling or rising, repeated where used twice
    double rows;
};

// The fewest rows in fractions, to within 1 in 10,000: column generation (Gilmore and Gomory 1961, 1963).
std::vector<Use> fractional_patterns(const std::vector<std::int32_t>& lengths, const std::vector<std::int64_t>& counts,
                                     std::int64_t capacity, std::int64_t most);

}  // namespace recipe_index
