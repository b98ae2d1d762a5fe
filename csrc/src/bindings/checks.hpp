// What Python hands over, checked and without Python: the only way into the algorithms.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

#include "recipe_index/span.hpp"

namespace recipe_index::python {

namespace py = pybind11;

// `value` as an integer from `low` to `high`. TypeError where it is none, ValueError where it is out of range.
inline std::int64_t integer(const char* name, const py::handle& value, std::int64_t low, std::int64_t high) {
    const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
    if (!index) {
        throw py::error_already_set();
    }
    int overflow = 0;
    const std::int64_t number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    if (overflow != 0 || number < low || number > high) {
        throw py::value_error(std::string(name) + ": expected from " + std::to_string(low) + " to " +
                              std::to_string(high) + ", got " + std::string(py::str(index)));
    }
    return number;
}

template <typename T>
bool has_dtype(const py::array& value) {
    return value.dtype().equal(py::dtype::of<T>());
}

// `value` as a contiguous array of one of the types Ts and so many dimensions. Nothing is ever converted: a copy of a
// memory map in another type would fill the memory without a word.
template <typename... Ts>
py::array array(const char* name, const py::object& value, py::ssize_t dimensions = 1) {
    const std::string start = std::string(name) + ": expected ";
    if (!py::isinstance<py::array>(value)) {
        throw py::value_error(start + "a NumPy array, got " +
                              std::string(py::str(py::type::of(value).attr("__name__"))));
    }
    const auto array = py::reinterpret_borrow<py::array>(value);
    if (!(has_dtype<Ts>(array) || ...)) {
        std::string wanted;
        ((wanted += (wanted.empty() ? "" : " or ") + std::string(py::str(py::dtype::of<Ts>()))), ...);
        throw py::value_error(start + "dtype " + wanted + ", got " + std::string(py::str(array.dtype())));
    }
    if (array.ndim() != dimensions) {
        throw py::value_error(start + std::to_string(dimensions) + " dimension(s), got " +
                              std::to_string(array.ndim()));
    }
    if ((array.flags() & py::array::c_style) == 0) {
        throw py::value_error(start + "contiguous memory; numpy.ascontiguousarray makes a copy that is");
    }
    return array;
}

inline void not_empty(const char* name, const py::array& value) {
    if (value.size() == 0) {
        throw py::value_error(std::string(name) + ": expected at least one entry, got none");
    }
}

// The entries of an array that `array` has checked. It must outlive them.
template <typename T>
Span<T> span(const py::array& value) {
    return {value.data(), value.size()};
}

}  // namespace recipe_index::python
