"""Which tokens only templates may write, and how media are written into "string" content.

A caller's text never becomes a media placeholder; with `--escape-control-tokens` it never becomes
any special token. Knows no request.
"""

from runtime.errors import SettingsError
from runtime.settings import ModelSettings, RenderSettings
from schemas.errors import ApiError
from workers.render.chat import MediaRules, Message
from workers.render.media import Media
from workers.render.templating import TemplateInput, Templates
from workers.text.private_tokens import PrivateTokens
from workers.text.tokenizer import Tokenizer


def guard(
    render: RenderSettings, tokenizer: Tokenizer, media: Media | None
) -> tuple[PrivateTokens, Tokenizer]:
    """The private tokens of this process and the tokenizer that knows them."""
    texts = [] if media is None else list(media.literals)
    if render.escape_control_tokens:
        texts += [
            t for t, token in tokenizer.added_tokens.items() if token in tokenizer.special_ids
        ]
    tokens = PrivateTokens(texts)
    return tokens, tokenizer.renamed(tokens.spelling) if tokens else tokenizer


def media_rules(
    settings: ModelSettings, render: RenderSettings, media: Media | None, tokens: PrivateTokens
) -> MediaRules:
    if media is None:
        return MediaRules()
    write = media.placeholder
    return MediaRules(
        limits=media.limits,
        max_limits=media.max_limits,
        placeholder=lambda modality, index: tokens.hide(write(modality, index)),
        takes_embeds=settings.enable_mm_embeds,
        interleave=render.interleave_mm_strings,
    )


_TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Bye"},
]


def check_escaping(
    render: RenderSettings, plain: Tokenizer, guarded: Tokenizer, own: Templates
) -> None:
    """Raise SettingsError where the model's template puts its control tokens together in a way that
    cannot be told from a caller's text: with escaping they would get lost."""
    usual = Templates(render, plain, PrivateTokens(()))
    for turns in (_TURNS, _TURNS[1:]):
        texts = [_text(templates, turns) for templates in (usual, own)]
        ids = [
            tokenizer.encode(text, add_special_tokens=False)
            for tokenizer, text in zip((plain, guarded), texts, strict=True)
            if text is not None
        ]
        if ids and ids[0] != ids[-1]:
            raise SettingsError(
                "--escape-control-tokens does not work with this model's chat template: it makes"
                " control tokens from pieces"
            )


def _text(templates: Templates, turns: list[Message]) -> str | None:
    given = TemplateInput(templates.effective_kwargs(None, {"add_generation_prompt": True}))
    opened = templates.open(given)
    messages = turns
    if opened.content_format == "openai":
        messages = [m | {"content": [{"type": "text", "text": m["content"]}]} for m in turns]
    try:
        return templates.render(opened, messages, given)
    except ApiError:
        return None
