// Numbers in memory that somebody else owns. No Python in here, nor in any other file of this folder.
#pragma once

#include <cstdint>
#include <cstring>

namespace recipe_index {

// Reads through memcpy, because the arrays behind the 34 bytes of an .idx header are not aligned. Compilers turn it
// into the plain load that it is.
template <typename T>
class Span {
public:
    Span(const void* data, std::int64_t size) : data_(static_cast<const unsigned char*>(data)), size_(size) {}

    std::int64_t size() const { return size_; }

    T operator[](std::int64_t index) const {
        T value;
        std::memcpy(&value, data_ + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
        return value;
    }

    // The bytes of the entries from `index` on.
    const unsigned char* at(std::int64_t index) const {
        return data_ + index * static_cast<std::int64_t>(sizeof(T));
    }

private:
    const unsigned char* data_;
    std::int64_t size_;
};

}  // namespace recipe_index
