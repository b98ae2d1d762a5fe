#include "recipe_index/mapped_read.hpp"

#ifndef _WIN32

#include <csignal>
#include <mutex>

namespace recipe_index {
namespace {

thread_local sigjmp_buf* landing = nullptr;
struct sigaction others;  // what handled the signal before, and does where no map is read: Python's faulthandler, say

void on_bus_error(int number, siginfo_t* info, void* context) {
    if (landing != nullptr) {
        siglongjmp(*landing, 1);
    }
    // What handles it may raise it once more, in order to end the process: it must not come back to itself then.
    const struct sigaction next = others;
    others = {};
    others.sa_handler = SIG_DFL;
    if ((next.sa_flags & SA_SIGINFO) != 0) {
        next.sa_sigaction(number, info, context);
    } else if (next.sa_handler == SIG_DFL || next.sa_handler == SIG_IGN) {
        std::signal(number, SIG_DFL);
        raise(number);
    } else {
        next.sa_handler(number);
    }
}

// Handlers may be set by anybody at any time, so the present one is looked at each time.
void handle_bus_errors() {
    static std::mutex one_at_a_time;
    const std::lock_guard<std::mutex> lock(one_at_a_time);
    struct sigaction present {};
    sigaction(SIGBUS, nullptr, &present);
    if ((present.sa_flags & SA_SIGINFO) != 0 && present.sa_sigaction == on_bus_error) {
        return;
    }
    struct sigaction mine {};
    mine.sa_sigaction = on_bus_error;
    // The jump leaves the handler without an end, so that the signal must not be blocked in it.
    mine.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&mine.sa_mask);
    others = present;
    sigaction(SIGBUS, &mine, nullptr);
}

}  // namespace

MappedRead::MappedRead() : outer_(landing) {
    handle_bus_errors();
    landing = &place;
}

MappedRead::~MappedRead() { landing = outer_; }

}  // namespace recipe_index

#endif
