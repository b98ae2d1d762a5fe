// A map from short strings to lists of token ids, built for many lookups of the same few strings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace recipe_index {

class WordTable {
public:
    // Where the ids of a word lie; a count below 0 says that they are not known yet.
    struct Ids {
        std::uint32_t start;
        std::int32_t count;
    };

    WordTable() { clear(); }

    void clear() {
        slots_.assign(kFirstSlots, Slot{0, 0, 0, {0, 0}});
        bytes_.clear();
        ids_.clear();
        words_ = 0;
    }

    std::size_t words() const { return words_; }
    std::size_t bytes() const { return bytes_.size() + ids_.size() * sizeof(std::int32_t); }
    const std::int32_t* data(Ids ids) const { return ids_.data() + ids.start; }

    // The ids of `word`, which may be changed until the next call of insert(); null where it is not in the table.
    Ids* find(std::string_view word) {
        const std::uint64_t hash = hash_of(word);
        for (std::size_t at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
            Slot& slot = slots_[at];
            if (slot.hash == 0) {
                return nullptr;
            }
            if (slot.hash == hash && slot.size == word.size() &&
                std::memcmp(bytes_.data() + slot.start, word.data(), word.size()) == 0) {
                return &slot.ids;
            }
        }
    }

    // Adds a word that is not there yet.
    void insert(std::string_view word, Ids ids) {
        if (2 * (words_ + 1) > slots_.size()) {
            grow();
        }
        place(Slot{hash_of(word), static_cast<std::uint32_t>(bytes_.size()), static_cast<std::uint32_t>(word.size()),
                   ids});
        bytes_.append(word);
        ++words_;
    }

    // Keeps `count` ids, for insert() or for what find() gave.
    Ids keep(const std::int32_t* ids, std::size_t count) {
        const Ids kept{static_cast<std::uint32_t>(ids_.size()), static_cast<std::int32_t>(count)};
        ids_.insert(ids_.end(), ids, ids + count);
        return kept;
    }

private:
    struct Slot {
        std::uint64_t hash;  // 0: free
        std::uint32_t start, size;
        Ids ids;
    };

    static constexpr std::size_t kFirstSlots = 1 << 12;

    static std::uint64_t hash_of(std::string_view word) {
        std::uint64_t hash = word.size() * 0x9E3779B97F4A7C15u;
        std::size_t at = 0;
        for (; at + 8 <= word.size(); at += 8) {
            std::uint64_t eight;
            std::memcpy(&eight, word.data() + at, 8);
            hash = (hash ^ eight) * 0xBF58476D1CE4E5B9u;
            hash ^= hash >> 32;
        }
        std::uint64_t rest = 0;
        std::memcpy(&rest, word.data() + at, word.size() - at);
        hash = (hash ^ rest) * 0x94D049BB133111EBu;
        hash ^= hash >> 29;
        return hash | (std::uint64_t{1} << 63);  // never 0, which marks a free slot
    }

    void place(const Slot& slot) {
        std::size_t at = slot.hash & (slots_.size() - 1);
        while (slots_[at].hash != 0) {
            at = (at + 1) & (slots_.size() - 1);
        }
        slots_[at] = slot;
    }

    void grow() {
        std::vector<Slot> old(2 * slots_.size(), Slot{0, 0, 0, {0, 0}});
        old.swap(slots_);
        for (const Slot& slot : old) {
            if (slot.hash != 0) {
                place(slot);
            }
        }
    }

    std::vector<Slot> slots_;
    std::string bytes_;
    std::vector<std::int32_t> ids_;
    std::size_t words_ = 0;
};

}  // namespace recipe_index
