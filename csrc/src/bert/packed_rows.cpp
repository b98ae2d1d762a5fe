#include "recipe_index/bert/packed_rows.hpp"

#include <stdexcept>
#include <string>

namespace recipe_index {
namespace {

[[noreturn]] void refuse(const char* what, std::int64_t index, const std::string& problem) {
    throw std::invalid_argument(std::string(what) + " " + std::to_string(index) + " " + problem);
}

// One row as it is filled.
class Row {
public:
    Row(const Unpacked& samples, const PackedRows& out, std::int64_t row) : samples_(samples), out_(out), row_(row) {}

    void add(std::int64_t sample) {
        const std::int64_t length = samples_.lengths[sample];
        if (length < 1 || length > samples_.sequence) {
            refuse("sample", sample, "has " + std::to_string(length) + " tokens, expected from 1 to " +
                                         std::to_string(samples_.sequence));
        }
        if (used_ + length > out_.capacity || number_ == out_.slots) {
            refuse("row", row_, "has no room for sample " + std::to_string(sample));
        }
        tokens(sample, length);
        predictions(sample, length);
        const std::int64_t slot = row_ * out_.slots + number_;
        out_.next_positions[slot] = static_cast<std::int32_t>(used_);
        out_.next_labels[slot] = samples_.next_sentence[sample];
        out_.next_weights[slot] = 1;
        used_ += length;
        ++number_;
    }

private:
    void tokens(std::int64_t sample, std::int64_t length) {
        const std::int64_t from = sample * samples_.sequence, to = row_ * out_.capacity + used_;
        for (std::int64_t i = 0; i < length; ++i) {
            out_.input_ids[to + i] = samples_.input_ids[from + i];
            out_.input_mask[to + i] = static_cast<std::int32_t>(number_ + 1);
            out_.segment_ids[to + i] = samples_.segment_ids[from + i];
            out_.token_positions[to + i] = static_cast<std::int32_t>(i);
        }
    }

    void predictions(std::int64_t sample, std::int64_t length) {
        const std::int64_t from = sample * samples_.most, to = row_ * out_.predictions;
        for (std::int64_t i = 0; i < samples_.most; ++i) {
            const std::int32_t position = samples_.positions[from + i];
            if (position == 0) {
                break;
            }
            if (position < 0 || position >= length) {
                refuse("sample", sample, "predicts position " + std::to_string(position) + " of " +
                                             std::to_string(length));
            }
            if (predicted_ == out_.predictions) {
                refuse("row", row_, "has more than " + std::to_string(out_.predictions) + " predictions");
            }
            out_.positions[to + predicted_] = static_cast<std::int32_t>(used_) + position;
            out_.ids[to + predicted_] = samples_.ids[from + i];
            ++predicted_;
        }
    }

    const Unpacked& samples_;
    const PackedRows& out_;
    const std::int64_t row_;
    std::int64_t used_ = 0, number_ = 0, predicted_ = 0;
};

}  // namespace

void pack_rows(const Unpacked& samples, const Groups& groups, const PackedRows& out) {
    for (std::int64_t row = 0; row + 1 < groups.rows.size(); ++row) {
        const std::int64_t start = groups.rows[row], end = groups.rows[row + 1];
        if (start < 0 || end < start || end > groups.order.size()) {
            refuse("row", row, "lies outside of the order");
        }
        Row filled(samples, out, row);
        for (std::int64_t i = start; i < end; ++i) {
            const std::int64_t sample = groups.order[i];
            if (sample < 0 || sample >= samples.lengths.size()) {
                refuse("row", row, "names sample " + std::to_string(sample) + ", which there is none of");
            }
            filled.add(sample);
        }
    }
}

}  // namespace recipe_index
