// A hint to the processor, which takes it or leaves it.
#pragma once

#include <cstdint>

namespace recipe_index {

// Memory so many bytes behind `address` will be written soon. It need not exist, so the sum is made of integers: a
// pointer outside of its array must not even be computed.
inline void prefetch_write(const void* address, std::uintptr_t bytes = 0) {
#if defined(__GNUC__)
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(address) + bytes), 1);
#else
    static_cast<void>(address);
    static_cast<void>(bytes);
#endif
}

}  // namespace recipe_index
