// Reading memory maps whose file is cut, or whose disk fails, while they are read.
#pragma once

#include <stdexcept>

#ifndef _WIN32
#include <csetjmp>
#endif

namespace recipe_index {

// A page of a memory map has no content any more: its file ends before it now, or the disk could not read it.
struct UnreadablePage : std::runtime_error {
    UnreadablePage() : std::runtime_error("a memory-mapped file was cut while it was read, or its disk failed") {}
};

#ifdef _WIN32  // where a mapped file cannot be cut

template <typename Work>
void read_mapped(Work work) {
    work();
}

#else

// While one lives, the signal SIGBUS of this thread continues behind sigsetjmp(place).
class MappedRead {
public:
    MappedRead();
    ~MappedRead();
    MappedRead(const MappedRead&) = delete;
    MappedRead& operator=(const MappedRead&) = delete;

    sigjmp_buf place;

private:
    sigjmp_buf* outer_;
};

// Calls work(), and throws UnreadablePage where it reads such a page. Nothing that `work` holds is destroyed then: it
// must own no memory when it reads. It costs one system call.
template <typename Work>
void read_mapped(Work work) {
    MappedRead read;
    if (sigsetjmp(read.place, 0) != 0) {
        throw UnreadablePage();
    }
    work();
}

#endif

}  // namespace recipe_index
