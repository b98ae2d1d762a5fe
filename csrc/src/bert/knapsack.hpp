// The most valuable pattern: at most so many lengths, at most so many tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace recipe_index {

// best[n][c] is the largest value of at most n lengths that together have at most c tokens. Values of two halves add
// up: best[m + n][c] = max over x of best[m][x] + best[n][c - x], so that n doubles with each table.
class Knapsack {
public:
    Knapsack(const std::vector<std::int32_t>& lengths, std::int64_t capacity, std::int64_t most)
        : lengths_(lengths), capacity_(static_cast<std::size_t>(capacity)) {
        const std::int64_t fitting = std::min(most, capacity / lengths.front());
        add_node(static_cast<std::int32_t>(fitting));
        item_.resize(capacity_ + 1);
    }

    // The value of the best pattern, whose items it appends to `items`.
    double solve(const std::vector<double>& values, std::vector<std::int32_t>& items) {
        singles(values);
        for (std::size_t node = 1; node < nodes_.size(); ++node) {
            // Of the last table, only the last entry is asked for.
            node + 1 == nodes_.size() ? fill_last(nodes_[node]) : fill(nodes_[node]);
        }
        collect(nodes_.size() - 1, capacity_, items);
        return nodes_.back().best[capacity_];
    }

private:
    struct Node {
        std::int32_t count;
        std::size_t left, right;
        std::vector<double> best;
    };

    // The place of the table for `count`, after those that it is made from.
    std::size_t add_node(std::int32_t count) {
        for (std::size_t node = 0; node < nodes_.size(); ++node) {
            if (nodes_[node].count == count) {
                return node;
            }
        }
        Node node{count, 0, 0, std::vector<double>(capacity_ + 1)};
        if (count > 1) {
            node.left = add_node((count + 1) / 2);
            node.right = add_node(count / 2);
        }
        nodes_.push_back(std::move(node));
        return nodes_.size() - 1;
    }

    void singles(const std::vector<double>& values) {
        std::fill(item_.begin(), item_.end(), -1);
        std::vector<double>& best = nodes_[0].best;
        std::fill(best.begin(), best.end(), 0.0);
        std::size_t next = 0;
        for (std::size_t c = 1; c <= capacity_; ++c) {
            best[c] = best[c - 1];
            item_[c] = item_[c - 1];
            if (next < lengths_.size() && static_cast<std::size_t>(lengths_[next]) == c) {
                if (values[next] > best[c]) {
                    best[c] = values[next];
                    item_[c] = static_cast<std::int32_t>(next);
                }
                ++next;
            }
        }
    }

    void fill(Node& node) const {
        const std::vector<double>&left = nodes_[node.left].best, &right = nodes_[node.right].best;
        node.best = right;
        for (std::size_t x = 1; x <= capacity_; ++x) {
            if (left[x] == left[x - 1]) {
                continue;  // as much for less room was tried before
            }
            const double value = left[x];
            const double* const from = right.data();
            double* const to = node.best.data() + x;
            for (std::size_t c = 0; c <= capacity_ - x; ++c) {
                const double found = value + from[c];
                to[c] = found > to[c] ? found : to[c];
            }
        }
    }

    void fill_last(Node& node) const {
        double most = 0;
        for (std::size_t x = 0; x <= capacity_; ++x) {
            most = std::max(most, nodes_[node.left].best[x] + nodes_[node.right].best[capacity_ - x]);
        }
        node.best[capacity_] = most;
    }

    void collect(std::size_t number, std::size_t c, std::vector<std::int32_t>& items) const {
        const Node& node = nodes_[number];
        if (number == 0) {
            if (item_[c] >= 0) {
                items.push_back(item_[c]);
            }
            return;
        }
        std::size_t x = 0;
        while (nodes_[node.left].best[x] + nodes_[node.right].best[c - x] != node.best[c]) {
            ++x;
        }
        collect(node.left, x, items);
        collect(node.right, c - x, items);
    }

    const std::vector<std::int32_t>& lengths_;
    const std::size_t capacity_;
    std::vector<Node> nodes_;          // the first is that of single lengths
    std::vector<std::int32_t> item_;  // which length gives best[1][c]
};

}  // namespace recipe_index
