"""How the servers behave that speak OpenAI's protocol, as their documents and the reports of their users tell."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from support.openai_server import Body, Dialect, HttpError

SIGNATURE = {"google": {"thought_signature": "EjQKMgEMOdbHJChL"}}


class ModelServer(Dialect):
    """OpenAI's own server.

    Attributes:
        name: As the guide on models has it.
        model: The one model that it has.
        lacks_tools: It was started without what calls of tools need.
    """

    name = "OpenAI"
    model = "gpt-4.1-2025-04-14"

    def __init__(self, *, lacks_tools: bool = False) -> None:
        self.lacks_tools = lacks_tools

    def unknown(self, model: str) -> HttpError:
        """Its answer to a request for a model that it does not have."""
        said = f"The model `{model}` does not exist or you do not have access to it."
        return self.error(404, said, code="model_not_found", type="invalid_request_error")

    def no_tools(self) -> HttpError:
        """Its answer to a request with tools where it lacks what these need."""
        raise NotImplementedError

    def error(self, code: int, message: str, /, **more: Any) -> HttpError:
        """An error in its form."""
        return _error(code, {"error": {"message": message, "param": None, **more}})

    def refusal(self, body: Body) -> HttpError | None:
        if body["model"] != self.model:
            return self.unknown(body["model"])
        if body.get("tools") and self.lacks_tools:
            return self.no_tools()
        return None


class OpenAI(ModelServer):
    """It takes no fields that it does not know, and strict schemas only."""

    def refusal(self, body: Body) -> HttpError | None:
        for call in _calls(body):
            if set(call) != {"id", "type", "function"} or len(call["id"]) > 40:
                return self.error(400, "Unknown parameter.", type="invalid_request_error")
        schema = body.get("response_format", {}).get("json_schema", {}).get("schema")
        if schema and schema["required"] != [*schema["properties"]]:
            return self.error(400, "Invalid schema for response_format.", type="invalid_request_error")
        return super().refusal(body)


class Anthropic(ModelServer):
    """It ignores ``response_format``, so that JSON comes with words and a fence, and takes no empty messages."""

    name = "Anthropic"
    model = "claude-sonnet-4-5"

    def unknown(self, model: str) -> HttpError:
        return self.error(404, f"model: {model}", code="not_found_error", type="not_found_error")

    def refusal(self, body: Body) -> HttpError | None:
        last = body["messages"][-1]
        if last["role"] == "assistant":
            said = "This model does not support assistant message prefill. The conversation must end with a user message."
            return self.error(400, said, type="invalid_request_error")
        if any(not each.get("content") and not each.get("tool_calls") for each in body["messages"]):
            said = "messages: text content blocks must be non-empty"
            return self.error(400, said, type="invalid_request_error")
        return super().refusal(body)

    def completion(self, body: Body, whole: Body) -> Body:
        if "response_format" in body:
            message = whole["choices"][0]["message"]
            message["content"] = f"Here is my verdict:\n\n```json\n{message['content']}\n```"
        return whole


class Gemini(ModelServer):
    """Each chunk has the usage so far, the last one also the finish reason, which is "stop" for calls, too.

    Calls have no number, and a signature that has to come back.
    """

    name = "Gemini"
    model = "gemini-3-flash-preview"

    def error(self, code: int, message: str, /, **more: Any) -> HttpError:
        return _error(code, [{"error": {"code": code, "message": message, **more}}])

    def unknown(self, model: str) -> HttpError:
        said = f"models/{model} is not found for API version v1main, or is not supported for generateContent."
        return self.error(404, said, status="NOT_FOUND")

    def refusal(self, body: Body) -> HttpError | None:
        if any(call.get("extra_content") != SIGNATURE for call in _calls(body)):
            said = "Function call is missing a thought_signature in functionCall parts."
            return self.error(400, said, status="INVALID_ARGUMENT")
        return super().refusal(body)

    def completion(self, body: Body, whole: Body) -> Body:
        for call in whole["choices"][0]["message"].get("tool_calls", ()):
            call["extra_content"] = SIGNATURE
        return whole

    def chunks(self, body: Body, chunks: Iterable[Body]) -> Iterator[Body]:
        pieces = [*chunks]
        usage = None if pieces[-1]["choices"] else pieces.pop()["usage"]
        for chunk in pieces:
            choice = chunk["choices"][0]
            for call in choice["delta"].get("tool_calls", ()):
                del call["index"]
                call["extra_content"] = SIGNATURE
            choice["finish_reason"] = choice["finish_reason"] and "stop"
            yield {**chunk, "usage": usage}


class LiteLLM(ModelServer):
    """Names its own classes in errors, adds fields, and sends the usage beside an empty choice."""

    name = "LiteLLM"
    model = "team-model"

    def unknown(self, model: str) -> HttpError:
        said = (
            f"/chat/completions: Invalid model name passed in model={model}. Call `/v1/models` to view available "
            "models for your key."
        )
        return self.error(400, said, type="None", code="400")

    def completion(self, body: Body, whole: Body) -> Body:
        whole["choices"][0]["message"]["provider_specific_fields"] = {"refusal": None}
        return whole

    def chunks(self, body: Body, chunks: Iterable[Body]) -> Iterator[Body]:
        for chunk in chunks:
            for choice in chunk["choices"]:
                choice["delta"]["provider_specific_fields"] = None
            choices: list[Body] = chunk["choices"] or [{"index": 0, "delta": {}, "finish_reason": None}]
            yield {**chunk, "choices": choices, "citations": None}


class Ollama(ModelServer):
    """Has thoughts in a field ``reasoning``, and no key."""

    name = "Ollama"
    model = "qwen3:8b"

    def unknown(self, model: str) -> HttpError:
        return self.error(404, f"model '{model}' not found", type="not_found_error", code=None)

    def no_tools(self) -> HttpError:
        said = f"registry.ollama.ai/library/{self.model} does not support tools"
        return self.error(400, said, type="api_error", code=None)

    def completion(self, body: Body, whole: Body) -> Body:
        _rename_thoughts(whole["choices"][0]["message"])
        return {**whole, "system_fingerprint": "fp_ollama"}

    def chunks(self, body: Body, chunks: Iterable[Body]) -> Iterator[Body]:
        for chunk in chunks:
            for choice in chunk["choices"]:
                _rename_thoughts(choice["delta"])
                # it sends both in each
                choice["delta"] = {"role": "assistant", "content": "", **choice["delta"]}
            yield {**chunk, "system_fingerprint": "fp_ollama"}


class VLLM(ModelServer):
    """Has thoughts in a field ``reasoning``, sends arguments in pieces, and takes tools only if it was told to."""

    name = "vLLM"
    model = "Qwen/Qwen3-8B"

    def __init__(self, *, lacks_tools: bool = False, alternates: bool = False) -> None:
        super().__init__(lacks_tools=lacks_tools)
        self.alternates = alternates
        """Whether the model's template takes no two messages of a user's in a row, as those of Gemma and Mistral."""

    def refusal(self, body: Body) -> HttpError | None:
        roles = [message["role"] for message in body["messages"]]
        if self.alternates and ("user", "user") in pairwise(roles):
            said = "Conversation roles must alternate user/assistant/user/assistant/..."
            return self.error(400, said, type="BadRequestError", code=400)
        return super().refusal(body)

    def unknown(self, model: str) -> HttpError:
        return self.error(404, f"The model `{model}` does not exist.", type="NotFoundError", code=404)

    def no_tools(self) -> HttpError:
        said = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        return self.error(400, said, type="BadRequestError", code=400)

    def completion(self, body: Body, whole: Body) -> Body:
        _rename_thoughts(whole["choices"][0]["message"])
        return {**whole, "prompt_logprobs": None, "kv_transfer_params": None}

    def chunks(self, body: Body, chunks: Iterable[Body]) -> Iterator[Body]:
        for chunk in chunks:
            for choice in chunk["choices"]:
                _rename_thoughts(choice["delta"])
                choice["stop_reason"] = None
            calls: list[Body] = []
            for choice in chunk["choices"]:
                calls += choice["delta"].pop("tool_calls", ())
            for call in calls:
                arguments = call["function"]["arguments"]
                function = {"name": call["function"]["name"], "arguments": ""}
                # words and the beginning of a call may come together
                yield _with_delta(chunk, content="I look. ", tool_calls=[{**call, "function": function}])
                for place in range(0, len(arguments), 4):
                    piece = {"index": call["index"], "function": {"arguments": arguments[place : place + 4]}}
                    yield _with_delta(chunk, tool_calls=[piece])
            if not calls:
                yield chunk


class LlamaCpp(ModelServer):
    """Answers for any model, tells how long it took, and refuses tools without ``--jinja`` as if it had failed."""

    name = "llama.cpp"
    model = "any"

    def refusal(self, body: Body) -> HttpError | None:
        return super().refusal({**body, "model": self.model})

    def no_tools(self) -> HttpError:
        return self.error(500, "tools param requires --jinja flag", type="server_error", code=500)

    def completion(self, body: Body, whole: Body) -> Body:
        return {**whole, "model": "qwen3-8b.gguf", "timings": {"predicted_ms": 12.5}}

    def chunks(self, body: Body, chunks: Iterable[Body]) -> Iterator[Body]:
        first, *rest = chunks
        first["choices"][0]["delta"]["content"] = None
        for chunk in (first, *rest):
            # without a choice is the last one
            timings = {} if chunk["choices"] else {"timings": {"predicted_ms": 12.5}}
            yield {**chunk, "model": "qwen3-8b.gguf", **timings}


SERVERS: tuple[type[ModelServer], ...] = (OpenAI, Anthropic, Gemini, LiteLLM, Ollama, VLLM, LlamaCpp)


def _error(status: int, body: object) -> HttpError:
    return HttpError(status, body=json.dumps(body).encode())


def _calls(body: Body) -> Iterator[Body]:
    """The calls of tools in the conversation."""
    return (call for message in body["messages"] for call in message.get("tool_calls", ()))


def _rename_thoughts(message: Body) -> None:
    if "reasoning_content" in message:
        message["reasoning"] = message.pop("reasoning_content")


def _with_delta(chunk: Body, **delta: Any) -> Body:
    return {**chunk, "choices": [{**chunk["choices"][0], "delta": delta}]}
