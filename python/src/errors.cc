// SPDX-License-Identifier: Apache-2.0
// Trimtab's errors as Python's, with their text: what a caller or a file got wrong is a ValueError,
// all others are RuntimeErrors.
#include "bindings.h"
#include "trimtab/error.h"

namespace trimtab::python {

void bind_errors(nb::module_& m) {
  // Those registered last are asked first.
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const InvalidArgument& e) {
      PyErr_SetString(PyExc_ValueError, e.what());
    } catch (const Error& e) {
      PyErr_SetString(PyExc_RuntimeError, e.what());
    }
  });
  nb::exception<FormatError>(m, "FormatError", PyExc_ValueError).doc() =
      "A file is not what it claims to be. The text names the file, the part and the byte offset.";
  nb::exception<CommError>(m, "CommError", PyExc_RuntimeError).doc() =
      "A peer rank is lost, late, or failed.";
}

}  // namespace trimtab::python
