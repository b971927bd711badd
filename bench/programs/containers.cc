// A C++ program of containers: an index of words, a graph of shared nodes, queues; much of it is thrown away and made again.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

static uint64_t state = 88172645463325252u;
static uint64_t chance(uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

static std::string word() {
    std::string text;
    for (uint64_t length = 3 + chance(30); text.size() < length;) text += char('a' + chance(26));
    return text;
}

struct Node {
    std::string name;
    std::vector<std::shared_ptr<Node>> children;
};

static std::shared_ptr<Node> tree(int depth) {
    auto node = std::make_shared<Node>();
    node->name = word();
    for (uint64_t count = chance(4); depth && count; count--) node->children.push_back(tree(depth - 1));
    return node;
}

static size_t index_words(std::unordered_map<std::string, std::vector<std::string>> &index, int count) {
    for (int at = 0; at < count; at++) {
        std::string text = word();
        index[text.substr(0, 2 + chance(2))].push_back(text);
        if (chance(8) == 0 && !index.empty()) index.erase(index.begin());
    }
    return index.size();
}

static size_t sort_words(int count) {
    std::map<std::string, std::set<std::string>> groups;
    for (int at = 0; at < count; at++) {
        std::string text = word();
        groups[std::string(1, text[0])].insert(std::move(text));
    }
    std::vector<std::string> all;
    for (auto &group : groups) all.insert(all.end(), group.second.begin(), group.second.end());
    std::sort(all.begin(), all.end(), [](auto &a, auto &b) { return a.size() < b.size(); });
    return all.size();
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? std::atoi(argv[1]) : 1;
    std::unordered_map<std::string, std::vector<std::string>> index;
    std::deque<std::shared_ptr<Node>> kept;
    std::list<std::vector<double>> rows;
    size_t sum = 0;
    for (int round = 0; round < rounds; round++) {
        sum += index_words(index, 400);
        sum += sort_words(300);
        for (int at = 0; at < 20; at++) kept.push_back(tree(7));
        while (kept.size() > 300) kept.erase(kept.begin() + chance(kept.size()));
        for (int at = 0; at < 50; at++) rows.emplace_back(chance(200), 1.0);
        while (rows.size() > 500) rows.pop_front();
    }
    std::printf("%zu\n", sum + kept.size());
    return 0;
}
