// The Python module of what any tokenizer may use.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "recipe_index/text/pieces.hpp"
#include "texts.hpp"

namespace recipe_index::python {

PYBIND11_MODULE(_text, module) {
    module.doc() = "The compiled half of recipe_index.text; recipe_index.plain_text documents it.";
    using py::arg;
    py::class_<Shared<Pieces>>(module, "Pieces", "See recipe_index.plain_text.Pieces.")
        .def(py::init([](AskedWords::Fallback fallback) {
                 return std::make_unique<Shared<Pieces>>(Pieces(locking(std::move(fallback))));
             }),
             arg("fallback"))
        .def("encode", &Shared<Pieces>::encode, arg("texts"), "See recipe_index.plain_text.Pieces.encode.");
}

}  // namespace recipe_index::python
