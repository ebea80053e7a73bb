"""Small chat templates of many families, with the constructs and the marks that the published ones have."""

from __future__ import annotations

from dataclasses import dataclass

_TURNS = "{% for m in messages %}"
_END = "{% endfor %}{% if add_generation_prompt %}"


@dataclass(frozen=True)
class Family:
    """special, plain: marks that are special tokens, and added tokens that are not."""

    template: str
    special: tuple[str, ...]
    plain: tuple[str, ...] = ()


_CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_HERMES = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

FAMILIES = {
    "chatml": Family(
        f"{_TURNS}{{{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}}}"
        f"{_END}{{{{ '<|im_start|>assistant\\n' }}}}{{% endif %}}",
        _CHATML,
    ),
    "qwen3": Family(
        "{%- if tools %}{{ '<|im_start|>system\\n<tools>' }}{% for t in tools %}{{ '\\n' + (t "
        "| tojson) }}{% endfor %}"
        "{{ '\\n</tools>\\nWrite <tool_call></tool_call>.<|im_end|>\\n' }}{% endif "
        "%}" + _TURNS + "{%- set content = m.content %}"
        "{%- if m.role == 'tool' %}{{ '<|im_start|>user\\n<tool_response>\\n' + content + "
        "'\\n</tool_response><|im_end|>\\n' }}"
        "{%- elif m.role == 'assistant' %}{%- set thought = '' %}{%- if '</think>' in content %}"
        "{%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}"
        "{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
        "{{ '<|im_start|>assistant\\n' + ('<think>\\n' + thought + '\\n</think>\\n\\n' if "
        "thought else '') + content }}"
        "{%- for c in m.tool_calls or [] %}{{ '<tool_call>\\n{\"name\": \"' + "
        "c.function.name + '\", \"arguments\": ' }}"
        "{{- c.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}"
        "{%- else %}{{ '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>\\n' }}{% endif %}"
        + _END
        + "{{ '<|im_start|>assistant\\n' }}{% endif %}",
        _CHATML,
        _HERMES,
    ),
    "llama3": Family(
        "{{ bos_token }}" + _TURNS + "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' "
        "+ m['content'] | trim + '<|eot_id|>' }}"
        + _END
        + "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
        ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    ),
    "mistral": Family(
        "{{ bos_token }}" + _TURNS + "{% if m.role == 'assistant' %}{{ ' ' + m.content + "
        "eos_token }}{% elif m.role == "
        "'tool' %}{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}{% elif m.role == 'system' %}"
        "{{ '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' }}"
        "{% else %}{{ '[INST] ' + m.content + ' [/INST]' }}{% endif %}{% endfor %}",
        ("<s>", "</s>", "[INST]", "[/INST]",
         "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    ),
    "deepseek": Family(
        "{{ bos_token }}" + _TURNS + "{% if m.role == 'assistant' %}{{ '<｜Assistant｜>' + "
        "m.content.split('</think>')[-1] "
        "+ '<｜end▁of▁sentence｜>' }}{% elif m.role == 'tool' %}{{ '<｜tool▁output▁begin｜>' + m.content + "
        "'<｜tool▁output▁end｜>' }}{% elif m.role == 'user' %}{{ '<｜User｜>' + m.content }}{% "
        "else %}{{ m.content }}"
        "{% endif %}" + _END + "{{ '<｜Assistant｜><think>\\n' }}{% endif %}",
        ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
        ("<｜User｜>", "<｜Assistant｜>", "<｜tool▁output▁begin｜>",
         "<｜tool▁output▁end｜>", "<think>", "</think>"),
    ),
    "gemma": Family(
        "{{ bos_token }}" + _TURNS + "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' "
        "else m.role) + '\\n' "
        "+ m.content | trim + '<end_of_turn>\\n' }}" + _END + "{{ '<start_of_turn>model\\n' }}{% endif %}",
        ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        ("\n\n", "<h1>", "</h1>"),
    ),
    "phi": Family(
        _TURNS + "{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}" + _END + "{{ '<|assistant|>' }}{% endif %}",
        ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"),
    ),
    "glm": Family(
        "[gMASK]<sop>" + _TURNS + "{% if m.role == 'tool' %}<|observation|>\n<tool_response>\n{{ m.content }}\n"
        "</tool_response>{% else %}<|{{ m.role }}|>\n{{ m.content }}{% endif "
        "%}" + _END + "<|assistant|>{% endif %}",
        ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        ("<tool_response>", "</tool_response>", "<think>", "</think>"),
    ),
    "granite": Family(
        _TURNS + "{{ '<|start_of_role|>' + m['role'] + '<|end_of_role|>' + m['content'] + '<|end_of_text|>\n' }}"
        + _END
        + "{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}",
        ("<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>"),
    ),
    "gpt-oss": Family(
        _TURNS + "{% if m.role == 'assistant' %}{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + "
        "'<|end|>' }}{% elif m.role == 'tool' %}{{ '<|start|>functions.f "
        "to=assistant<|channel|>commentary<|message|>' + "
        "m.content | tojson + '<|end|>' }}{% else %}{{ '<|start|>' + m.role + '<|message|>' + "
        "m.content + '<|end|>' }}"
        "{% endif %}" + _END + "{{ '<|start|>assistant' }}{% endif %}",
        ("<|endoftext|>", "<|return|>", "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>"),
    ),
    "kimi": Family(
        _TURNS + "{% if m.role == 'user' %}<|im_user|>user{% elif m.role == 'assistant' %}<|im_assistant|>assistant"
        "{% else %}<|im_system|>{{ m.role }}{% endif %}<|im_middle|>{{ m.content }}<|im_end|>"
        + _END
        + "<|im_assistant|>assistant<|im_middle|>{% endif %}",
        ("[EOS]", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>"),
    ),
    "command-r": Family(
        "{{ bos_token }}" + _TURNS + "<|START_OF_TURN_TOKEN|>{% if m.role == 'assistant' %}<|CHATBOT_TOKEN|>"
        "{% elif m.role == 'user' %}<|USER_TOKEN|>{% else %}<|SYSTEM_TOKEN|>{% endif %}{{ m.content.strip() }}"
        "<|END_OF_TURN_TOKEN|>" + _END + "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}",
        ("<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>",
         "<|SYSTEM_TOKEN|>"),
    ),
    "exaone": Family(
        _TURNS + "{{ '[|' + m.role + '|]\\n' + m.content }}{{ '[|endofturn|]\\n' }}" + _END
        + "{{ '[|assistant|]\\n' }}{% endif %}",
        ("[BOS]", "[|endofturn|]", "[|system|]", "[|user|]", "[|assistant|]", "[|tool|]"),
    ),
    "gemma4": Family(
        "{%- macro spoken(text) %}{%- set n = namespace(x='') %}{%- for part in text.split('<channel|>') %}"
        "{%- set n.x = n.x + part.split('<|channel>')[0] %}{% endfor %}{{ n.x | trim }}{% endmacro %}"
        "{{ bos_token }}" + _TURNS + "{{ '<|turn>' + m.role + '\\n' }}{{ spoken(m.content) if "
        "m.role == 'assistant' else "
        "m.content | trim }}{{ '<turn|>\\n' }}" + _END + "{{ '<|turn>model\\n' }}{% endif %}",
        ("<bos>", "<eos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>"),
    ),
}  # fmt: skip

# As gpt-oss's, which shows thoughts and a text beside a call in one channel, and so refuses both.
ONE_BESIDE_A_CALL = (
    _TURNS + "{% if m.role == 'assistant' and m.tool_calls %}{% if m.content and m.thinking %}"
    "{{ raise_exception('content and thinking beside a call: give one of them') }}{% endif %}"
    "{% if m.content or m.thinking %}"
    "{{ '<|start|>assistant<|channel|>analysis<|message|>' + (m.content or m.thinking) + '<|end|>' }}{% endif %}"
    "{% set f = m.tool_calls[0].function %}{{ '<|start|>assistant to=functions.' + f.name "
    "+ '<|channel|>commentary json<|message|>' + f.arguments | tojson + '<|call|>' }}"
    "{% elif m.role == 'tool' %}"
    "{{ '<|start|>functions to=assistant<|channel|>commentary<|message|>' + m.content | tojson + '<|end|>' }}"
    "{% elif m.role == 'assistant' %}{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}"
    "{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}"
    + _END
    + "{{ '<|start|>assistant' }}{% endif %}"
)

# As Qwen 3.5's: the result of a tool in the user's name is no question.
NEEDS_A_QUESTION = (
    "{% set ns = namespace(found=false) %}" + _TURNS + "{% if m.role == 'user' and not "
    "(m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) %}"
    "{% set ns.found = true %}{% endif %}{% endfor %}"
    "{% if not ns.found %}{{ raise_exception('no question of the user') }}{% endif %}"
    + _TURNS
    + "{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') }}{% for c in m.tool_calls or [] %}"
    "{{ '<tool_call>\\n' + c.function | tojson + '\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}"
    + _END
    + "{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
