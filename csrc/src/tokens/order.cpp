#include "recipe_index/tokens/order.hpp"

#include <stdexcept>
#include <string>

#include "recipe_index/random/fast_shuffle.hpp"
#include "recipe_index/random/numpy_shuffle.hpp"

namespace recipe_index {
namespace {

void check_not_negative(Span<std::int32_t> documents) {
    std::int32_t lowest = 0;
    for (std::int64_t i = 0; i < documents.size(); ++i) {
        lowest = std::min(lowest, documents[i]);
    }
    for (std::int64_t i = 0; lowest < 0; ++i) {
        if (documents[i] < 0) {
            throw std::invalid_argument("documents: expected no negative number, got " + std::to_string(documents[i]) +
                                        " at index " + std::to_string(i));
        }
    }
}

// Gives the documents over and over.
class Repeated {
public:
    explicit Repeated(Span<std::int32_t> documents) : documents_(documents) {}

    std::int32_t operator()() {
        const std::int32_t document = documents_[at_];
        at_ = at_ + 1 == documents_.size() ? 0 : at_ + 1;
        return document;
    }

private:
    Span<std::int32_t> documents_;
    std::int64_t at_ = 0;
};

}  // namespace

void document_order(Span<std::int32_t> documents, std::int64_t epochs, std::uint32_t seed, bool separate_last_epoch,
                    bool megatron, std::int32_t* out) {
    check_not_negative(documents);
    const std::int64_t last = separate_last_epoch && epochs > 1 ? documents.size() : 0;
    const std::int64_t first = epochs * documents.size() - last;
    if (megatron) {
        std::generate(out, out + first + last, Repeated(documents));
        NumpyShuffle numpy(seed);
        numpy.shuffle(out, first);
        numpy.shuffle(out + first, last);
    } else {
        fast_shuffle(out, first, seed, Use::documents, Repeated(documents));
        fast_shuffle(out + first, last, seed, Use::last_documents, Repeated(documents));
    }
}

template <typename Index>
void shuffle_index(std::int64_t separate, std::int64_t total, std::uint32_t seed, bool megatron,
                   const std::vector<std::int64_t>& drawn, Index* out) {
    Index number = 0;
    const auto next = [&number] { return number++; };
    if (megatron) {
        NumpyShuffle numpy(seed);
        for (const std::int64_t count : drawn) {
            numpy.skip(count);
        }
        std::generate(out, out + total, next);
        numpy.shuffle(out, separate);
        numpy.shuffle(out + separate, total - separate);
    } else {
        fast_shuffle(out, separate, seed, Use::samples, next);
        fast_shuffle(out + separate, total - separate, seed, Use::last_samples, next);
    }
}

template void shuffle_index(std::int64_t, std::int64_t, std::uint32_t, bool, const std::vector<std::int64_t>&,
                            std::uint32_t*);
template void shuffle_index(std::int64_t, std::int64_t, std::uint32_t, bool, const std::vector<std::int64_t>&,
                            std::int64_t*);

}  // namespace recipe_index
