// What the modules share that take texts from Python: the interpreter's lock, and results without a copy.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "recipe_index/text/asked_words.hpp"

namespace recipe_index::python {

namespace py = pybind11;

template <typename Work>
auto unlocked(Work work) {
    const py::gil_scoped_release release;
    return work();
}

// Moves the entries of a vector into an array, without a copy.
template <typename T>
py::array_t<T> owned(std::vector<T>&& values) {
    auto kept = std::make_unique<std::vector<T>>(std::move(values));
    std::vector<T>* const raw = kept.get();
    const py::capsule owner(raw, [](void* vector) { delete static_cast<std::vector<T>*>(vector); });
    static_cast<void>(kept.release());
    return py::array_t<T>(static_cast<py::ssize_t>(raw->size()), raw->data(), owner);
}

// A function of Python as one that takes the lock of the interpreter, which encode() below lets go.
inline AskedWords::Fallback locking(AskedWords::Fallback function) {
    return [asked = std::move(function)](const std::vector<std::string>& texts) {
        const py::gil_scoped_acquire acquire;
        return asked(texts);
    };
}

// A tokenizer that several Python threads may share: what it remembers is changed by one at a time.
template <typename Tokenizer>
class Shared {
public:
    explicit Shared(Tokenizer&& tokenizer) : tokenizer_(std::move(tokenizer)) {}

    py::tuple encode(const py::list& texts) {
        std::vector<std::string_view> views;
        views.reserve(texts.size());
        for (const py::handle text : texts) {
            if (!PyUnicode_Check(text.ptr())) {
                throw py::type_error("texts: expected str, got " + std::string(py::str(py::type::of(text))));
            }
            Py_ssize_t size = 0;
            const char* const data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);  // the str keeps it
            if (data == nullptr) {
                throw py::error_already_set();
            }
            views.emplace_back(data, static_cast<std::size_t>(size));
        }
        const py::list kept = texts.attr("copy")();  // whoever takes a text off the list must not free it meanwhile
        Encoded encoded = unlocked([&] {
            const std::lock_guard<std::mutex> lock(mutex_);
            return tokenizer_.encode(views);
        });
        return py::make_tuple(owned(std::move(encoded.ids)), owned(std::move(encoded.lengths)));
    }

private:
    std::mutex mutex_;
    Tokenizer tokenizer_;
};

}  // namespace recipe_index::python
