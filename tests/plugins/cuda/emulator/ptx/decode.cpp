// PTX text to instructions.

#include <algorithm>
#include <cctype>
#include <stdexcept>
#include <unordered_map>

#include "kernel.h"

namespace emulator::ptx {
namespace {

struct Token {
    std::string text;
    int line;
};

bool is_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '$' || c == '%';
}

std::vector<Token> tokens_of(const std::string& text, int line) {
    std::vector<Token> tokens;
    for (size_t i = 0; i < text.size();) {
        const char c = text[i];
        if (c == '\n') ++line;
        if (std::isspace(static_cast<unsigned char>(c))) {
            ++i;
        } else if (text.compare(i, 2, "//") == 0) {
            i = std::min(text.find('\n', i), text.size());
        } else if (c == '"') {
            const size_t end = text.find('"', i + 1) + 1;
            tokens.push_back({text.substr(i, end - i), line});
            i = end;
        } else if (is_word(c)) {
            size_t end = i;
            while (end < text.size() && is_word(text[end])) ++end;
            tokens.push_back({text.substr(i, end - i), line});
            i = end;
        } else {
            tokens.push_back({std::string(1, c), line});
            ++i;
        }
    }
    return tokens;
}

class Decoder {
  public:
    Decoder(const std::string& text, int first_line) : tokens_(tokens_of(text, first_line)) {
        kernel_.registers.resize(kSpecials);
        const char* const names[] = {"%tid", "%ntid", "%ctaid", "%nctaid"};
        for (uint16_t i = 0; i < kSpecials; ++i)
            registers_[std::string(names[i / 3]) + "." + "xyz"[i % 3]] = i;
    }

    Kernel decode() {
        read_head();
        while (at_ < tokens_.size()) read_statement();
        for (const auto& [instruction, label] : jumps_) {
            const auto found = labels_.find(label);
            if (found == labels_.end()) throw std::runtime_error("no label " + label);
            kernel_.code[instruction].target = found->second;
        }
        return std::move(kernel_);
    }

    int line() const { return tokens_.empty() ? 0 : tokens_[std::min(at_, tokens_.size() - 1)].line; }

  private:
    const std::string& peek() const {
        if (at_ >= tokens_.size()) throw std::runtime_error("ends in mid-statement");
        return tokens_[at_].text;
    }
    std::string take() {
        std::string text = peek();
        ++at_;
        return text;
    }
    bool take_if(const char* text) {
        if (at_ >= tokens_.size() || tokens_[at_].text != text) return false;
        ++at_;
        return true;
    }
    int64_t take_integer() {
        const bool negative = take_if("-");
        const auto value = static_cast<int64_t>(std::stoull(take(), nullptr, 0));
        return negative ? -value : value;
    }

    // .entry name ( .param … ) directives {
    void read_head() {
        while (peek() != ".entry") take();
        take();
        kernel_.name = take();
        while (peek() != "{") {
            const std::string token = take();
            if (token == ".param") read_parameter();
            if (token == ".maxntid") kernel_.most_threads = static_cast<unsigned>(take_integer());
        }
    }

    // .param .u32 name, or .param .align 8 .b8 name[304]
    void read_parameter() {
        size_t align = 0;
        if (take_if(".align")) align = static_cast<size_t>(take_integer());
        const std::string type = take();
        const size_t element = static_cast<size_t>(std::stoi(type.substr(2))) / 8;
        const std::string name = take();
        size_t count = 1;
        if (take_if("[")) {
            count = static_cast<size_t>(take_integer());
            take();
        }
        if (align == 0) align = element;
        const size_t offset = (kernel_.parameter_bytes + align - 1) / align * align;
        kernel_.parameters.push_back({offset, element * count});
        kernel_.parameter_bytes = offset + element * count;
        symbols_[name] = static_cast<int64_t>(offset);
    }

    void read_statement() {
        if (take_if("{") || take_if("}") || take_if(";")) return;
        if (peek() == ".local") return read_local();
        if (peek() == ".reg" || peek() == ".pragma") {
            while (take() != ";") {
            }
            return;
        }
        if (at_ + 1 < tokens_.size() && tokens_[at_ + 1].text == ":") {
            labels_[take()] = static_cast<uint32_t>(kernel_.code.size());
            take();
            return;
        }
        read_instruction();
    }

    // .local .align 8 .b8 name[48];
    void read_local() {
        while (peek().rfind(".", 0) == 0 || std::isdigit(static_cast<unsigned char>(peek()[0]))) take();
        symbols_[take()] = static_cast<int64_t>(kernel_.local_bytes);
        take();
        kernel_.local_bytes += static_cast<size_t>(take_integer());
        while (take() != ";") {
        }
    }

    void read_instruction() {
        Instruction instruction;
        if (take_if("@")) {
            instruction.is_guarded = true;
            instruction.is_guard_negated = take_if("!");
            instruction.guard = register_of(take());
        }
        std::string opcode = take();
        if (opcode.rfind("bra", 0) == 0 && (opcode == "bra" || opcode == "bra.uni"))
            jumps_.push_back({kernel_.code.size(), take()});
        bool first = true;
        while (!take_if(";")) {
            if (take_if(",")) continue;
            if (peek() == "{" && opcode.rfind("mov.", 0) == 0) opcode += first ? ".unpack" : ".pack";
            read_operand(instruction);
            first = false;
        }
        if (opcode == "lop3.b32") instruction.table = static_cast<uint8_t>(constant(instruction, 4));
        if (!decode_memory_operation(opcode, instruction)) {
            instruction.execute = find_arithmetic(opcode);
            if (!instruction.execute) instruction.execute = find_warp_operation(opcode);
        }
        if (!instruction.execute) throw std::runtime_error("no instruction " + opcode);
        kernel_.code.push_back(instruction);
    }

    uint64_t constant(const Instruction& instruction, size_t index) const {
        return kernel_.registers[instruction.operands[index]];
    }

    void read_operand(Instruction& instruction) {
        if (take_if("{")) {
            while (!take_if("}"))
                if (!take_if(",")) add(instruction, read_value());
        } else if (take_if("[")) {
            add(instruction, read_value());
            if (take_if("+")) instruction.displacement = take_integer();
            if (!take_if("]")) throw std::runtime_error("an address that does not end");
        } else {
            add(instruction, read_value());
            if (take_if("|")) add(instruction, read_value());
        }
    }

    static void add(Instruction& instruction, uint16_t operand) {
        if (instruction.operand_count == Instruction::kMostOperands)
            throw std::runtime_error("more operands than any instruction has");
        instruction.operands[instruction.operand_count++] = operand;
    }

    uint16_t read_value() {
        if (peek() == "-" || std::isdigit(static_cast<unsigned char>(peek()[0]))) {
            const std::string& text = peek();
            if (text.rfind("0f", 0) == 0 || text.rfind("0d", 0) == 0)
                return new_constant(std::stoull(take().substr(2), nullptr, 16));
            return new_constant(static_cast<uint64_t>(take_integer()));
        }
        const std::string name = take();
        const auto symbol = symbols_.find(name);
        if (symbol != symbols_.end()) return new_constant(static_cast<uint64_t>(symbol->second));
        if (name.find("dynamic_shared") != std::string::npos)
            return new_constant(0);  // all there is in .shared
        return register_of(name);
    }

    uint16_t new_constant(uint64_t value) {
        const auto found = constants_.find(value);
        return found != constants_.end() ? found->second : constants_[value] = new_register(value);
    }

    uint16_t register_of(const std::string& name) {
        const auto found = registers_.find(name);
        return found != registers_.end() ? found->second : registers_[name] = new_register(0);
    }

    uint16_t new_register(uint64_t value) {
        if (kernel_.registers.size() > 0xffff)
            throw std::runtime_error("more than 65,536 registers and constants");
        kernel_.registers.push_back(value);
        return static_cast<uint16_t>(kernel_.registers.size() - 1);
    }

    struct Jump {
        size_t instruction;
        std::string label;
    };

    std::vector<Token> tokens_;
    size_t at_ = 0;
    Kernel kernel_;
    std::unordered_map<std::string, uint16_t> registers_;
    std::unordered_map<uint64_t, uint16_t> constants_;
    std::unordered_map<std::string, int64_t> symbols_;  // offsets in their space
    std::unordered_map<std::string, uint32_t> labels_;
    std::vector<Jump> jumps_;
};

}  // namespace

Kernel decode(const std::string& text, const std::string& file, int first_line) {
    Decoder decoder(text, first_line);
    try {
        return decoder.decode();
    } catch (const std::exception& error) {  // std::stoull's too
        throw std::runtime_error(file + ":" + std::to_string(decoder.line()) + ": " + error.what());
    }
}

}  // namespace emulator::ptx
