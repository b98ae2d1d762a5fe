// The Python module: check the arguments, make room for the result, let the interpreter go, call the algorithm.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <limits>
#include <vector>

#include "checks.hpp"
#include "recipe_index/limits.hpp"
#include "recipe_index/mapped_read.hpp"
#include "recipe_index/tokens/blend.hpp"
#include "recipe_index/tokens/gather.hpp"
#include "recipe_index/tokens/idx.hpp"
#include "recipe_index/tokens/order.hpp"
#include "recipe_index/tokens/samples.hpp"

namespace recipe_index::python {
namespace {

// Lets other Python threads run while `work` does, which must not touch Python.
template <typename Work>
auto unlocked(Work work) {
    const py::gil_scoped_release release;
    return work();
}

py::tuple parse_idx(const py::object& data) {
    const py::array bytes = array<unsigned char>("data", data);
    const Span<unsigned char> content = span<unsigned char>(bytes);
    IdxLayout layout{};
    unlocked([&] { read_mapped([&] { layout = recipe_index::parse_idx(content); }); });
    const py::object plain = py::module_::import("numpy").attr("asarray")(bytes);  // views of a memory map are none
    const auto view = [&plain](std::int64_t start, std::int64_t end, const char* dtype) {
        return py::object(plain[py::slice(start, end, 1)].attr("view")(dtype));
    };
    return py::make_tuple(layout.dtype_code, view(layout.sizes, layout.pointers, "<i4"),
                          view(layout.pointers, layout.documents, "<i8"), view(layout.documents, layout.end, "<i8"));
}

py::array document_order(const py::object& documents, const py::object& epochs, const py::object& seed,
                         bool separate_last_epoch, bool megatron) {
    const py::array exposed = array<std::int32_t>("documents", documents);
    const std::int64_t times = integer("epochs", epochs, 1, kMostOrdered);
    const auto number = static_cast<std::uint32_t>(integer("seed", seed, 0, kMostSeed));
    not_empty("documents", exposed);
    if (times > kMostOrdered / exposed.size()) {
        throw py::value_error("epochs: " + std::to_string(times) + " epochs of " + std::to_string(exposed.size()) +
                              " documents are too many; expected at most " + std::to_string(kMostOrdered) +
                              " entries");
    }
    py::array_t<std::int32_t> out(times * exposed.size());
    std::int32_t* const entries = out.mutable_data();
    unlocked([&] {
        recipe_index::document_order(span<std::int32_t>(exposed), times, number, separate_last_epoch, megatron,
                                     entries);
    });
    return out;
}

template <typename Index>
py::array sample_index_of(Span<std::int32_t> sizes, Span<std::int32_t> order, std::int64_t sequence,
                          std::int64_t samples) {
    py::array_t<Index> out({samples + 1, std::int64_t{2}});
    Index* const entries = out.mutable_data();
    unlocked([&] { recipe_index::sample_index(sizes, order, sequence, samples, entries); });
    return out;
}

py::array sample_index(const py::object& sizes, const py::object& order, const py::object& sequence,
                       const py::object& samples) {
    const py::array lengths = array<std::int32_t>("sizes", sizes);
    const py::array ordered = array<std::int32_t>("order", order);
    const std::int64_t step = integer("sequence", sequence, 1, kMostSequence);
    const std::int64_t count = integer("samples", samples, 0, kMostEntries);
    not_empty("sizes", lengths);
    not_empty("order", ordered);
    if (ordered.size() > kMostOrdered) {
        throw py::value_error("order: expected at most " + std::to_string(kMostOrdered) + " entries, got " +
                              std::to_string(ordered.size()));
    }
    const Span<std::int32_t> lengths_span = span<std::int32_t>(lengths);
    const Span<std::int32_t> ordered_span = span<std::int32_t>(ordered);
    unlocked([&] { check_samples(lengths_span, ordered_span, step, count); });
    // As Megatron decides: by the largest number that can appear. Offsets are below the sizes, which are int32.
    if (ordered.size() > std::numeric_limits<std::int32_t>::max()) {
        return sample_index_of<std::int64_t>(lengths_span, ordered_span, step, count);
    }
    return sample_index_of<std::int32_t>(lengths_span, ordered_span, step, count);
}

template <typename Index>
py::array shuffle_index_of(std::int64_t separate, std::int64_t total, std::uint32_t seed, bool megatron,
                           const std::vector<std::int64_t>& drawn) {
    py::array_t<Index> out(total);
    Index* const entries = out.mutable_data();
    unlocked([&] { recipe_index::shuffle_index(separate, total, seed, megatron, drawn, entries); });
    return out;
}

py::array shuffle_index(const py::object& separate, const py::object& total, const py::object& seed, bool megatron,
                        const py::iterable& drawn) {
    const std::int64_t end = integer("total", total, 0, kMostEntries);
    const std::int64_t first = integer("separate", separate, 0, end);
    const auto number = static_cast<std::uint32_t>(integer("seed", seed, 0, kMostSeed));
    std::vector<std::int64_t> lengths;
    for (const py::handle length : drawn) {
        lengths.push_back(integer("drawn", length, 0, kMostOrdered));
    }
    if (end >= std::numeric_limits<std::uint32_t>::max() - std::int64_t{1}) {  // as Megatron decides
        return shuffle_index_of<std::int64_t>(first, end, number, megatron, lengths);
    }
    return shuffle_index_of<std::uint32_t>(first, end, number, megatron, lengths);
}

py::tuple blending_index(const py::object& weights, const py::object& samples) {
    const py::array shares = array<double>("weights", weights);
    const std::int64_t count = integer("samples", samples, 0, kMostEntries);
    not_empty("weights", shares);
    if (constexpr std::int64_t most = std::numeric_limits<std::int16_t>::max(); shares.size() > most) {
        throw py::value_error("weights: expected at most " + std::to_string(most) + " entries, got " +
                              std::to_string(shares.size()));
    }
    py::array_t<std::int16_t> datasets(count);
    py::array_t<std::int64_t> numbers(count);
    std::int16_t* const dataset = datasets.mutable_data();
    std::int64_t* const number = numbers.mutable_data();
    unlocked([&] { recipe_index::blending_index(span<double>(shares), count, dataset, number); });
    return py::make_tuple(datasets, numbers);
}

// The arguments of gather() after their checks.
struct Gather {
    py::array tokens, starts, sizes, order, samples_index, which;
    std::int64_t sequence, limit;

    template <typename Token, typename Index>
    py::array call() const {
        const Tokens<Token> file{span<Token>(tokens), span<std::int64_t>(starts), span<std::int32_t>(sizes)};
        const Samples<Index> samples{span<std::int32_t>(order), span<Index>(samples_index)};
        const Span<std::int64_t> chosen = span<std::int64_t>(which);
        py::array_t<std::int64_t> out({chosen.size(), sequence + 1});
        std::int64_t* const ids = out.mutable_data();
        unlocked([&] {
            read_mapped([&] { recipe_index::gather(file, samples, chosen, sequence, limit, ids); });
        });
        return out;
    }

    template <typename Token>
    py::array call() const {
        return has_dtype<std::int32_t>(samples_index) ? call<Token, std::int32_t>() : call<Token, std::int64_t>();
    }
};

py::array gather(const py::object& tokens, const py::object& starts, const py::object& sizes, const py::object& order,
                 const py::object& samples_index, const py::object& which, const py::object& sequence,
                 const py::object& limit) {
    const Gather with{array<std::uint16_t, std::int32_t>("tokens", tokens),
                      array<std::int64_t>("starts", starts),
                      array<std::int32_t>("sizes", sizes),
                      array<std::int32_t>("order", order),
                      array<std::int32_t, std::int64_t>("samples_index", samples_index, 2),
                      array<std::int64_t>("which", which),
                      integer("sequence", sequence, 1, kMostSequence),
                      integer("limit", limit, 1, std::numeric_limits<std::int64_t>::max())};
    if (with.starts.size() != with.sizes.size()) {
        throw py::value_error("starts: expected " + std::to_string(with.sizes.size()) +
                              " entries, as many as sizes has, got " + std::to_string(with.starts.size()));
    }
    if (with.samples_index.shape(0) < 1 || with.samples_index.shape(1) != 2) {
        throw py::value_error("samples_index: expected shape [samples + 1, 2], got [" +
                              std::to_string(with.samples_index.shape(0)) + ", " +
                              std::to_string(with.samples_index.shape(1)) + "]");
    }
    if (with.which.size() > kMostEntries / (with.sequence + 1)) {
        throw py::value_error("which: " + std::to_string(with.which.size()) + " samples of " +
                              std::to_string(with.sequence) + " tokens are too many");
    }
    return has_dtype<std::uint16_t>(with.tokens) ? with.call<std::uint16_t>() : with.call<std::int32_t>();
}

}  // namespace

PYBIND11_MODULE(_core, module) {
    module.doc() = "The compiled functions of recipe_index; recipe_index.plain documents them.";
    using py::arg;
    py::register_local_exception_translator([](std::exception_ptr error) {
        try {
            std::rethrow_exception(error);
        } catch (const UnreadablePage& page) {
            py::set_error(PyExc_OSError, page.what());
        }
    });
    module.def("parse_idx", &parse_idx, arg("data"), "As recipe_index.plain.parse_idx, as a plain tuple.");
    module.def("document_order", &document_order, arg("documents"), arg("epochs"), arg("seed"),
               arg("separate_last_epoch"), arg("megatron"), "See recipe_index.plain.document_order.");
    module.def("sample_index", &sample_index, arg("sizes"), arg("order"), arg("sequence"), arg("samples"),
               "See recipe_index.plain.sample_index.");
    module.def("shuffle_index", &shuffle_index, arg("separate"), arg("total"), arg("seed"), arg("megatron"),
               arg("drawn") = py::tuple(), "See recipe_index.plain.shuffle_index.");
    module.def("blending_index", &blending_index, arg("weights"), arg("samples"),
               "See recipe_index.plain.blending_index.");
    module.def("gather", &gather, arg("tokens"), arg("starts"), arg("sizes"), arg("order"), arg("samples_index"),
               arg("which"), arg("sequence"), arg("limit"), "See recipe_index.plain.gather.");
}

}  // namespace recipe_index::python
