"""Reads a Hugging Face ``config.json`` of any architecture; imported only when somebody pastes one.

``reader`` is the way in.  ``text`` turns text into an object or says what the text is instead, ``values`` reads typed
values from it, ``dense``, ``gpt``, ``moe``, ``hybrid`` and ``gemma`` describe the families, ``attention``, ``recurrent``
and ``feedforward`` count one layer's parts, ``plans`` says which layer holds which, ``weights`` what a parameter weighs.
"""
