// The Python module of BERT's data: check the arguments, make room for the result, let the interpreter go, call the
// algorithm.
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "checks.hpp"
#include "recipe_index/bert/masking.hpp"
#include "recipe_index/bert/packed_rows.hpp"
#include "recipe_index/bert/packing.hpp"
#include "recipe_index/bert/pairs.hpp"
#include "recipe_index/bert/wordpiece.hpp"
#include "recipe_index/random/keyed_random.hpp"
#include "texts.hpp"

namespace recipe_index::python {
namespace {

constexpr std::int64_t kMostSequence = std::numeric_limits<std::uint16_t>::max();
constexpr std::int64_t kMostIds = std::numeric_limits<std::int32_t>::max();

double probability(const char* name, const py::handle& value) {
    const auto number = value.cast<double>();
    if (!(number >= 0.0 && number <= 1.0)) {
        throw py::value_error(std::string(name) + ": expected from 0 to 1, got " + std::string(py::str(value)));
    }
    return number;
}

// An array of zeros and where its entries are.
template <typename T>
py::array_t<T> zeros(std::vector<py::ssize_t> shape) {
    py::array_t<T> out(std::move(shape));
    std::memset(out.mutable_data(), 0, static_cast<std::size_t>(out.nbytes()));
    return out;
}

std::unique_ptr<Shared<WordPiece>> word_piece(const std::vector<std::string>& pieces, const py::object& ids,
                                              bool lowercase, const py::object& unknown,
                                              std::vector<std::string> special, AskedWords::Fallback fallback) {
    const py::array given = array<std::int32_t>("ids", ids);
    if (static_cast<std::size_t>(given.size()) != pieces.size()) {
        throw py::value_error("ids: expected one for each of the " + std::to_string(pieces.size()) + " pieces, got " +
                              std::to_string(given.size()));
    }
    const auto* const data = static_cast<const std::int32_t*>(given.data());
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        if (data[i] < 0) {
            throw py::value_error("ids: expected no negative number, got " + std::to_string(data[i]));
        }
    }
    const auto id = static_cast<std::int32_t>(integer("unknown", unknown, 0, kMostIds));
    return std::make_unique<Shared<WordPiece>>(WordPiece(pieces, {data, data + pieces.size()}, lowercase, id,
                                                         std::move(special), locking(std::move(fallback))));
}

py::array make_pairs(const py::object& sentences, const py::object& documents, const py::object& pool,
                     const py::object& first, const py::object& last, const py::object& sequence,
                     const py::object& short_probability, const py::object& seed, const py::object& round) {
    const py::array sentence = array<std::int64_t>("sentences", sentences);
    const py::array document = array<std::int64_t>("documents", documents);
    const py::array chosen = array<std::int64_t>("pool", pool);
    const std::int64_t most = integer("sequence", sequence, 5, kMostSequence);
    const double is_short = probability("short_probability", short_probability);
    const std::int64_t end = integer("last", last, 0, chosen.size());
    const std::int64_t start = integer("first", first, 0, end);
    const auto number = static_cast<std::uint64_t>(integer("seed", seed, 0, kMostIds));
    const auto pass = static_cast<std::uint64_t>(integer("round", round, 0, kMostIds));
    if (chosen.size() < 2 || chosen.size() > kMostIds) {
        throw py::value_error("pool: expected from 2 to " + std::to_string(kMostIds) + " documents, got " +
                              std::to_string(chosen.size()));
    }
    const Documents store{span<std::int64_t>(sentence), span<std::int64_t>(document), span<std::int64_t>(chosen)};
    std::vector<Pair> pairs;
    unlocked([&] {
        recipe_index::make_pairs(store, start, end, most, is_short, key_of(key_of(0, number), pass), pairs);
    });
    return owned(std::move(pairs));
}

template <typename Token>
py::array segments_of(const py::array& store, Span<std::int64_t> starts, Span<std::int64_t> lengths,
                      std::int64_t total) {
    py::array_t<Token> out(total);
    Token* const to = out.mutable_data();
    unlocked([&] { recipe_index::copy_segments(span<Token>(store), starts, lengths, to); });
    return out;
}

py::array copy_segments(const py::object& tokens, const py::object& starts, const py::object& lengths) {
    const py::array store = array<std::uint16_t, std::int32_t>("tokens", tokens);
    const py::array from = array<std::int64_t>("starts", starts);
    const py::array sizes = array<std::int64_t>("lengths", lengths);
    const Span<std::int64_t> places = span<std::int64_t>(from), counts = span<std::int64_t>(sizes);
    if (places.size() != counts.size()) {
        throw py::value_error("lengths: expected " + std::to_string(places.size()) +
                              " entries, as many as starts has, got " + std::to_string(counts.size()));
    }
    std::int64_t total = 0;
    for (std::int64_t i = 0; i < counts.size(); ++i) {
        if (counts[i] < 0 || counts[i] > kMostIds) {
            throw py::value_error("lengths: expected from 0 to " + std::to_string(kMostIds) + ", got " +
                                  std::to_string(counts[i]) + " at index " + std::to_string(i));
        }
        total += counts[i];
    }
    return has_dtype<std::uint16_t>(store) ? segments_of<std::uint16_t>(store, places, counts, total)
                                           : segments_of<std::int32_t>(store, places, counts, total);
}

py::tuple fill_rows(const py::object& tokens, const py::object& pairs, const py::object& kinds, const py::object& cls,
                    const py::object& sep, const py::object& mask, const py::object& pad, const py::object& sequence,
                    const py::object& most, const py::object& masked, bool whole_words) {
    const py::array store = array<std::uint16_t, std::int32_t>("tokens", tokens);
    const py::array chosen = array<Pair>("pairs", pairs);
    const py::array kind = array<std::uint8_t>("kinds", kinds);
    const std::int64_t end = kind.size() - 1;
    const auto id = [end](const char* name, const py::object& value) {
        return static_cast<std::int32_t>(integer(name, value, 0, end));
    };
    const std::int64_t length = integer("sequence", sequence, 5, kMostSequence);
    const Masking masking{id("cls", cls), id("sep", sep), id("mask", mask), id("pad", pad), span<std::uint8_t>(kind),
                          length, integer("most", most, 1, length), probability("probability", masked), whole_words};
    bool drawable = false;
    for (std::int64_t i = 0; i <= end; ++i) {
        drawable = drawable || (masking.kinds[i] & kSpecialToken) == 0;
    }
    if (!drawable) {
        throw py::value_error("kinds: expected at least one id that is no special token");
    }
    const py::ssize_t rows = chosen.size();
    auto input_ids = zeros<std::int32_t>({rows, length});
    auto input_mask = zeros<std::int8_t>({rows, length});
    auto segment_ids = zeros<std::int8_t>({rows, length});
    auto positions = zeros<std::int32_t>({rows, masking.most});
    auto ids = zeros<std::int32_t>({rows, masking.most});
    auto next = zeros<std::int8_t>({rows});
    const Rows out{input_ids.mutable_data(), input_mask.mutable_data(), segment_ids.mutable_data(),
                   positions.mutable_data(), ids.mutable_data(), next.mutable_data()};
    const Span<Pair> which = span<Pair>(chosen);
    if (has_dtype<std::uint16_t>(store)) {
        unlocked([&] { recipe_index::fill_rows(span<std::uint16_t>(store), which, masking, out); });
    } else {
        unlocked([&] { recipe_index::fill_rows(span<std::int32_t>(store), which, masking, out); });
    }
    return py::make_tuple(input_ids, input_mask, segment_ids, positions, ids, next);
}

py::tuple pack(const py::object& lengths, const py::object& capacity, const py::object& most, const py::object& seed) {
    const py::array given = array<std::int32_t>("lengths", lengths);
    const std::int64_t room = integer("capacity", capacity, 1, kMostSequence);
    const std::int64_t limit = integer("most", most, 0, kMostIds);
    const auto number = static_cast<std::uint64_t>(integer("seed", seed, 0, kMostIds));
    if (given.size() > kMostIds) {
        throw py::value_error("lengths: expected at most " + std::to_string(kMostIds) + " sequences, got " +
                              std::to_string(given.size()));
    }
    Packed packed = unlocked([&] {
        return recipe_index::pack(span<std::int32_t>(given), room, limit == 0 ? room : limit, key_of(1, number));
    });
    return py::make_tuple(owned(std::move(packed.order)), owned(std::move(packed.rows)));
}

void same_rows(const char* name, const py::array& value, py::ssize_t rows, py::ssize_t columns) {
    if (value.shape(0) != rows || (value.ndim() > 1 && value.shape(1) != columns)) {
        const std::string wide = value.ndim() > 1 ? ", " + std::to_string(columns) : "";
        throw py::value_error(std::string(name) + ": expected shape [" + std::to_string(rows) + wide + "]");
    }
}

py::tuple pack_rows(const py::object& input_ids, const py::object& segment_ids, const py::object& lengths,
                    const py::object& positions, const py::object& ids, const py::object& next_sentence,
                    const py::object& order, const py::object& rows, const py::object& capacity,
                    const py::object& predictions, const py::object& slots) {
    const py::array tokens = array<std::int32_t>("input_ids", input_ids, 2);
    const py::array segments = array<std::int8_t>("segment_ids", segment_ids, 2);
    const py::array sizes = array<std::int32_t>("lengths", lengths);
    const py::array places = array<std::int32_t>("positions", positions, 2);
    const py::array predicted = array<std::int32_t>("ids", ids, 2);
    const py::array next = array<std::int8_t>("next_sentence", next_sentence);
    const py::array sequence_of = array<std::int64_t>("order", order);
    const py::array starts = array<std::int64_t>("rows", rows);
    same_rows("segment_ids", segments, tokens.shape(0), tokens.shape(1));
    same_rows("lengths", sizes, tokens.shape(0), 0);
    same_rows("positions", places, tokens.shape(0), places.shape(1));
    same_rows("ids", predicted, tokens.shape(0), places.shape(1));
    same_rows("next_sentence", next, tokens.shape(0), 0);
    not_empty("rows", starts);
    const std::int64_t room = integer("capacity", capacity, 1, kMostSequence);
    const std::int64_t most = integer("predictions", predictions, 1, kMostSequence);
    const std::int64_t places_for = integer("slots", slots, 1, kMostSequence);
    const py::ssize_t count = starts.size() - 1;
    auto out_ids = zeros<std::int32_t>({count, room});
    auto out_mask = zeros<std::int32_t>({count, room});
    auto out_segments = zeros<std::int8_t>({count, room});
    auto out_positions = zeros<std::int32_t>({count, room});
    auto masked_positions = zeros<std::int32_t>({count, most});
    auto masked_ids = zeros<std::int32_t>({count, most});
    auto next_positions = zeros<std::int32_t>({count, places_for});
    auto next_labels = zeros<std::int8_t>({count, places_for});
    auto next_weights = zeros<std::int32_t>({count, places_for});
    const Unpacked samples{span<std::int32_t>(tokens), span<std::int8_t>(segments),   span<std::int32_t>(sizes),
                           span<std::int32_t>(places), span<std::int32_t>(predicted), span<std::int8_t>(next),
                           tokens.shape(1),            places.shape(1)};
    const Groups groups{span<std::int64_t>(sequence_of), span<std::int64_t>(starts)};
    const PackedRows out{out_ids.mutable_data(),        out_mask.mutable_data(),         out_segments.mutable_data(),
                         out_positions.mutable_data(),  masked_positions.mutable_data(), masked_ids.mutable_data(),
                         next_positions.mutable_data(), next_labels.mutable_data(),      next_weights.mutable_data(),
                         room,                          most,                            places_for};
    unlocked([&] { recipe_index::pack_rows(samples, groups, out); });
    return py::make_tuple(out_ids, out_mask, out_segments, out_positions, masked_positions, masked_ids, next_positions,
                          next_labels, next_weights);
}

}  // namespace

PYBIND11_MODULE(_bert, module) {
    module.doc() = "The compiled functions of recipe_index.bert; recipe_index.plain_bert documents them.";
    using py::arg;
    PYBIND11_NUMPY_DTYPE(Pair, a_start, b_start, key, a_length, b_length, random_next, single, unused);
    module.attr("PAIR") = py::dtype::of<Pair>();
    py::class_<Shared<WordPiece>>(module, "WordPiece", "See recipe_index.plain_bert.WordPiece.")
        .def(py::init(&word_piece), arg("pieces"), arg("ids"), arg("lowercase"), arg("unknown"), arg("special"),
             arg("fallback"))
        .def("encode", &Shared<WordPiece>::encode, arg("texts"), "See recipe_index.plain_bert.WordPiece.encode.");
    module.def("make_pairs", &make_pairs, arg("sentences"), arg("documents"), arg("pool"), arg("first"), arg("last"),
               arg("sequence"), arg("short_probability"), arg("seed"), arg("round"),
               "See recipe_index.plain_bert.make_pairs.");
    module.def("copy_segments", &copy_segments, arg("tokens"), arg("starts"), arg("lengths"),
               "See recipe_index.plain_bert.copy_segments.");
    module.def("fill_rows", &fill_rows, arg("tokens"), arg("pairs"), arg("kinds"), arg("cls"), arg("sep"), arg("mask"),
               arg("pad"), arg("sequence"), arg("most"), arg("probability"), arg("whole_words"),
               "See recipe_index.plain_bert.fill_rows.");
    module.def("pack", &pack, arg("lengths"), arg("capacity"), arg("most"), arg("seed"),
               "See recipe_index.plain_packing.pack.");
    module.def("pack_rows", &pack_rows, arg("input_ids"), arg("segment_ids"), arg("lengths"), arg("positions"),
               arg("ids"), arg("next_sentence"), arg("order"), arg("rows"), arg("capacity"), arg("predictions"),
               arg("slots"), "See recipe_index.plain_packing.pack_rows.");
}

}  // namespace recipe_index::python
