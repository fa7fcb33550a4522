"""What only trusting servers take of a request: templates, and options of loading and processing.

Both servers refuse these fields unless they run with --trust-request-chat-template and
--trust-request-mm-kwargs. Knows no whole request.
"""

from collections.abc import Mapping

from hypothesis import strategies as st

from fuzz.values import JSON, TEXT, Strategy, chosen, rarely, some

_COLOUR = st.lists(st.integers(0, 255), min_size=3, max_size=3)
_MODES = chosen("RGB", "RGBA", "L", "LA", "1", "P", "CMYK", "I", "F", "YCbCr", "HSV", "LAB", None)
_IMAGE_IO: Mapping[str, Strategy] = {
    "image_mode": _MODES,
    "rgba_background_color": _COLOUR,
    "unheard_of": JSON,
}
_IMAGE_IO_ODD: Mapping[str, Strategy] = {
    "image_mode": chosen("", "nonsense", 5, "rgb"),
    "rgba_background_color": chosen([1, 2], [1, 2, 300], "red", None, [1.5, 2, 3], [True, 0, 1]),
}
_IO_ODD = chosen({"image": None}, {"image": 5}, {"video": {"fps": 1}}, {"x": {}}, 5, [], {})
_VIDEO_IO = chosen({"num_frames": 3}, {"num_frames": 8}, {"fps": 1}, {"fps": 4.0}, {})
MEDIA_IO = rarely(
    _IO_ODD,
    st.fixed_dictionaries(
        {"image": some(_IMAGE_IO, _IMAGE_IO_ODD, 2)}, optional={"video": _VIDEO_IO}
    ),
    12,
)

_PIXELS = st.one_of(st.integers(1, 5000), st.integers(1, 300_000), st.integers(1, 2**21))
_CHANNELS = st.one_of(
    st.lists(st.floats(0.1, 0.9), min_size=3, max_size=3), st.floats(0.1, 0.9), st.none()
)
_KNOWN: Mapping[str, Strategy] = {
    "min_pixels": _PIXELS,
    "max_pixels": _PIXELS,
    "size": st.fixed_dictionaries({"shortest_edge": _PIXELS, "longest_edge": _PIXELS}),
    "do_resize": st.booleans(),
    "do_rescale": st.booleans(),
    "do_normalize": st.booleans(),
    "do_convert_rgb": chosen(True, False, None),
    "resample": st.integers(0, 3) | chosen("bicubic", "bilinear", "nearest", "lanczos"),
    "rescale_factor": st.floats(0.001, 1),
    "image_mean": _CHANNELS,
    "image_std": _CHANNELS,
}
_ODD: Mapping[str, Strategy] = {
    "min_pixels": chosen(0, -5, "x", 1.5, None, 10**9, True),
    "max_pixels": chosen(0, -5, "x", 1.5, None, 10**9, False),
    "size": chosen({}, None, 5, "x", {"height": 32, "width": 64}, {"shortest_edge": 900}),
    "do_resize": chosen("yes", 5, None),
    "resample": chosen(-1, 6, 4, 5, None, "box", "BICUBIC"),
    "image_std": chosen([], [0.5], [0.0, 0.0, 0.0]),
    "patch_size": chosen(16, "x", None),
    "text_kwargs": chosen({}, {"truncation": True}, None, 5),
    "device": chosen("cpu", "nowhere", None),
    "return_tensors": chosen("np", None),
}
_ODD_IN_SCOPE: Mapping[str, Strategy] = _ODD | {
    "image_std": chosen([], [0, 0, 0]),
    "unheard_of": JSON,
    "min_frames": chosen(3, "x"),
    "image_mean": chosen([0, 0, 0], ["x"], 0, "x"),
}
PROCESSOR = rarely(
    chosen(5, [], {}, None, {"images_kwargs": 5}, {"images_kwargs": None}),
    st.one_of(
        some({**_KNOWN, "unheard_of": JSON}, _ODD, 3),
        st.fixed_dictionaries(
            {"images_kwargs": some(_KNOWN, _ODD_IN_SCOPE, 2)}, optional={"max_pixels": _PIXELS}
        ),
        # Odd ones would be found out only where no picture is known from before.
        st.fixed_dictionaries({"videos_kwargs": some(_KNOWN, {}, 2)}),
    ),
    15,
)

_AS_TEXT = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
_AS_PARTS = (
    "{%- for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m.content is string %}"
    "{{ m.content }}{% else %}{% for c in m.content %}{% if c.type == 'text' %}{{ c.text }}"
    "{% elif c.type == 'image' %}{{ '<|vision_start|><|ima' + 'ge_pad|><|vision_end|>' }}"
    "{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEMPLATES = st.one_of(
    chosen(
        *(_AS_TEXT, _AS_PARTS, _AS_TEXT + "{{ tools | tojson }}", "{{ messages | tojson }}"),
        "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
        "{{ messages[-1]['content'] | trim }}{{ add_generation_prompt }}",
        "{{ documents }}{{ add_vision_id }}{{ enable_thinking }}{{ reasoning_effort }}",
        "{% for m in messages %}{{ loop.index }}{{ m.tool_calls | default([]) | tojson }}"
        "{% if not loop.last %}{% continue %}{% endif %}{% break %}{% endfor %}",
        *("plain", "", " ", "{#- x #}\n{{- 'a' -}}\n b", "{% generation %}x{% endgeneration %}"),
    ),
    chosen(
        *("{{", "{% for %}", "{{ nothing.of.this }}", "{{ raise_exception('no') }}", "{{ 1 / 0 }}"),
        *("{{ ''.__class__ }}", "{{ messages.append(1) }}", "{% include 'x' %}", "{{ x | nope }}"),
        *("{{ messages[9].content }}", "default", "/etc/hostname", "{{ range(9) | sum }}"),
    ),
    TEXT,
)
